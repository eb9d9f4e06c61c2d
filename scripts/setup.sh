# Sourced by the other scripts: makes .venv with everything for development, once per change of
# the dependencies. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stamp=.venv/.installed
wanted=$(cat pyproject.toml constraints.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    echo "Setting up .venv (a minute or two) ..."
    "${PYTHON:-python3}" -m venv .venv
    .venv/bin/python -m pip install -qq --disable-pip-version-check \
        --constraint constraints.txt --editable '.[dev]'
    # Only its data is wanted (a test of chats); what it depends on is large and pinned.
    .venv/bin/python -m pip install -qq --disable-pip-version-check --no-deps bfcl-eval==2026.3.23
    # mosaicml-streaming brings a build for CUDA, which cannot be imported beside a CPU build of
    # torch, and libraries that find it try to. Nothing here needs it.
    .venv/bin/python -c 'import torchvision' 2>/dev/null ||
        .venv/bin/python -m pip uninstall -qq -y torchvision
    echo "$wanted" >"$stamp"
fi
export PATH="$PWD/.venv/bin:$PATH"
