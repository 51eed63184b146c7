# Builds the frontend and its native library, and puts them into an image with nothing else.
#
#   docker build -t portico .
#   docker run --rm -p 8000:8000 portico --embedded
#
# In a cluster, workers connect back to the frontend: give it an address that they reach (--tcp-response-stream-host).

FROM golang:1.26-bookworm AS go

FROM rust:1-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends cmake && rm -rf /var/lib/apt/lists/*
COPY --from=go /usr/local/go /usr/local/go
ENV PATH=/usr/local/go/bin:$PATH
WORKDIR /src
# What the native library is made of comes first: it takes the longest and changes the least.
COPY go.mod go.sum ./
COPY native native
RUN mkdir -p internal/native && native/build.sh
COPY . .
RUN make build

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --no-create-home portico
WORKDIR /portico
COPY --from=build /src/bin/frontend /usr/local/bin/frontend
COPY --from=build /src/configs configs
COPY LICENSE .
USER portico
EXPOSE 8000
STOPSIGNAL SIGTERM
ENTRYPOINT ["frontend"]
