#!/bin/sh
# Installs the official clients: OpenAI's for Python and Node into .build/clients/python and node, Anthropic's for
# Python into .build/clients/anthropic. Prints the folder. Each is installed once per list of versions. PYTHON chooses the interpreter.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$root/.build/clients
mkdir -p "$out"

if ! cmp -s "$here/python/requirements.txt" "$out/python/.stamp" 2>/dev/null; then
    rm -rf "$out/python"
    "${PYTHON:-python3}" -m venv "$out/python"
    "$out/python/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        -r "$here/python/requirements.txt" >&2
    "$out/python/bin/python" -c 'import openai'
    cp "$here/python/requirements.txt" "$out/python/.stamp"
fi

if ! cmp -s "$here/anthropic/requirements.txt" "$out/anthropic/.stamp" 2>/dev/null; then
    rm -rf "$out/anthropic"
    "${PYTHON:-python3}" -m venv "$out/anthropic"
    "$out/anthropic/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps \
        -r "$here/anthropic/requirements.txt" >&2
    "$out/anthropic/bin/python" -c 'import anthropic'
    cp "$here/anthropic/requirements.txt" "$out/anthropic/.stamp"
fi

# Node is optional: without it, its tests say so and are skipped.
if command -v npm >/dev/null && ! cmp -s "$here/node/package-lock.json" "$out/node/.stamp" 2>/dev/null; then
    rm -rf "$out/node"
    mkdir -p "$out/node"
    cp "$here/node/package.json" "$here/node/package-lock.json" "$out/node/"
    (cd "$out/node" && npm ci --no-audit --no-fund --loglevel=error >&2)
    cp "$here/node/package-lock.json" "$out/node/.stamp"
fi
echo "$out"
