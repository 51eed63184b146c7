#!/usr/bin/env bash
# Builds the etcd server of the end-to-end tests into .build/bin/etcd. A key over everything that goes into the binary
# makes a second run free. Prints the binary's path.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(cd "$here/../.." && pwd)/.build/bin
bin=$out/etcd
key=$({ go version; cat "$here/go.mod" "$here/go.sum" "$here"/*.go; } | sha256sum | cut -d' ' -f1)

mkdir -p "$out"
exec 9>"$out/etcd.lock" # test packages run side by side and may all ask for the binary
flock 9
if [[ ! -x $bin || $(cat "$bin.key" 2>/dev/null || true) != "$key" ]]; then
    (cd "$here" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -p 2 -trimpath -buildvcs=false -ldflags='-s -w' -o "$bin.new" .)
    mv -f "$bin.new" "$bin"
    printf '%s\n' "$key" >"$bin.key"
fi
printf '%s\n' "$bin"
