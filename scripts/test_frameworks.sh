#!/usr/bin/env bash
# Transformers 5, TRL, Lightning, torchtitan and Megatron-LM as installed, in an environment of their
# own (.venv-frameworks; a few minutes the first time). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stamp=.venv-frameworks/.installed
wanted=$(cat pyproject.toml scripts/frameworks.txt | cksum)
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    echo "Setting up .venv-frameworks ..."
    "${PYTHON:-python3}" -m venv .venv-frameworks
    pip=(.venv-frameworks/bin/python -m pip install -qq --disable-pip-version-check)
    "${pip[@]}" --requirement scripts/frameworks.txt --editable .
    # Only their data classes are wanted; what they depend on is large, and partly for GPUs alone.
    "${pip[@]}" --no-deps 'torchtitan==0.3.0' 'megatron-core>=0.16,<0.17'
    echo "$wanted" >"$stamp"
fi
.venv-frameworks/bin/python -m pytest -m "not gpu" tests/frameworks tests/test_batch.py \
    tests/consumers/test_consumers.py tests/consumers/test_equal_losses.py "$@"
