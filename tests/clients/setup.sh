#!/bin/sh
# Installs the clients that tests use as oracles: OpenAI's for Python and Node into .build/clients/python and node,
# Anthropic's for Python into anthropic, OpenAI's agents SDK into agents, the SDKs built on OpenAI's client into sdks,
# the types of Open Responses into openresponses.
# Prints the folder. Each is installed once per list of versions. PYTHON chooses the interpreter.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/.build/clients
mkdir -p "$out"

# Each folder with a list of Python packages, and a module that has to be there afterwards.
for client in python:openai anthropic:anthropic agents:agents sdks:langchain_openai \
    openresponses:openresponses_types; do
    name=${client%%:*}
    cmp -s "$here/$name/requirements.txt" "$out/$name/.stamp" 2>/dev/null && continue
    rm -rf "$out/$name"
    "${PYTHON:-python3}" -m venv "$out/$name"
    "$out/$name/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        -r "$here/$name/requirements.txt" >&2
    "$out/$name/bin/python" -c "import ${client#*:}"
    cp "$here/$name/requirements.txt" "$out/$name/.stamp"
done

# Node is optional: without it, its tests say so and are skipped.
if command -v npm >/dev/null && ! cmp -s "$here/node/package-lock.json" "$out/node/.stamp" 2>/dev/null; then
    rm -rf "$out/node"
    mkdir -p "$out/node"
    cp "$here/node/package.json" "$here/node/package-lock.json" "$out/node/"
    (cd "$out/node" && npm ci --no-audit --no-fund --loglevel=error >&2)
    cp "$here/node/package-lock.json" "$out/node/.stamp"
fi
echo "$out"
