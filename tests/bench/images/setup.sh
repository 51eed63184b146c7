#!/bin/sh
# Prepares the Python environment of reference.py and prints its path.
#
# PORTICO_MM_VENV names one that is ready; it is then used as it is. Otherwise one is made under .build/venv-images, once
# per requirements file; that takes some minutes and 5 GB. PYTHON chooses the interpreter.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
requirements=$here/requirements.txt

check() { # VENV: everything that reference.py needs can be imported
    "$1/bin/python" -c 'import torch, torchvision, transformers, PIL, blake3'
}

if [ -n "${PORTICO_MM_VENV:-}" ]; then
    check "$PORTICO_MM_VENV" || { echo "images: PORTICO_MM_VENV=$PORTICO_MM_VENV lacks packages of $requirements" >&2; exit 1; }
    echo "$PORTICO_MM_VENV"
    exit 0
fi

venv=$root/.build/venv-images
stamp=$venv/.stamp
if ! cmp -s "$requirements" "$stamp" 2>/dev/null; then
    echo "images: installing PyTorch into $venv, 5 GB" >&2
    rm -rf "$venv" # half an installation is worse than none
    mkdir -p "$root/.build"
    "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2
    check "$venv"
    cp "$requirements" "$stamp" # last: an interrupted run starts over
fi
echo "$venv"
