#!/bin/sh
# Prepares the Python peers of the end-to-end tests and prints the path of their virtual environment.
#
# PORTICO_VENV names an environment that is ready; it is then used as it is. Otherwise one is made under .build/venv,
# once per requirements file. PYTHON chooses the interpreter.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
requirements=$here/requirements.txt

check() { # VENV: everything the tests start can be imported
    "$1/bin/python" -c 'import dynamo.frontend.main, dynamo.mocker.main, dynamo.llm, llama_cpp, numpy'
}

if [ -n "${PORTICO_VENV:-}" ]; then
    check "$PORTICO_VENV" || { echo "peers: PORTICO_VENV=$PORTICO_VENV lacks packages of $requirements" >&2; exit 1; }
    echo "$PORTICO_VENV"
    exit 0
fi

venv=$root/.build/venv
stamp=$venv/.stamp
if ! cmp -s "$requirements" "$stamp" 2>/dev/null; then
    echo "peers: installing into $venv; llama.cpp is compiled, which takes some minutes the first time" >&2
    rm -rf "$venv" # half an installation is worse than none
    mkdir -p "$root/.build"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$requirements" >&2
    check "$venv"
    cp "$requirements" "$stamp" # last: an interrupted run starts over
fi
echo "$venv"
