#!/bin/sh
# Installs Claude Code, in the version of package-lock.json, into .build/agents/claude, and prints its program. It takes
# 400 MB, so it is there for whoever asks for it only; the test is skipped without it.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=$(cd "$here/../../.." && pwd)/.build/agents/claude
if ! cmp -s "$here/package-lock.json" "$out/.stamp" 2>/dev/null; then
    rm -rf "$out"
    mkdir -p "$out"
    cp "$here/package.json" "$here/package-lock.json" "$out/"
    (cd "$out" && npm ci --no-audit --no-fund --loglevel=error >&2)
    cp "$here/package-lock.json" "$out/.stamp"
fi
echo "$out/node_modules/.bin/claude"
