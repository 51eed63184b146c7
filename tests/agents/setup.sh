#!/bin/sh
# Installs the agents named, of codex, kimi and opencode, or all, in the versions of their package-lock.json, into
# .build/agents. Together they take 1.1 GB, so they are there for whoever asks for them only; their tests are skipped
# without them. Nothing that the packages bring is run while they are installed.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || set -- codex kimi opencode
for agent in "$@"; do
    out=$(cd "$here/../.." && pwd)/.build/agents/$agent
    cmp -s "$here/$agent/package-lock.json" "$out/.stamp" 2>/dev/null && continue
    rm -rf "$out"
    mkdir -p "$out"
    cp "$here/$agent/package.json" "$here/$agent/package-lock.json" "$out/"
    # Not npm ci: a list made on one system lacks the packages of others, which that refuses.
    (cd "$out" && npm install --ignore-scripts --no-audit --no-fund --loglevel=error >&2)
    cp "$here/$agent/package-lock.json" "$out/.stamp"
done
