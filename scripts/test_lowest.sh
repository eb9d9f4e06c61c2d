#!/usr/bin/env bash
# The lowest versions that pyproject.toml allows, torch included, in an environment of their own
# (.venv-lowest), with Python 3.10 as PYTHON. What needs mosaicml-streaming or moto to write MDS or to
# serve S3 is left out.
export PYTHON="${PYTHON:-python3.10}"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" lowest
exec pytest -k "not mds and not object_store and not s3 and not any_ranks" \
    tests/packing tests/window tests/lane tests/streams tests/test_loader.py \
    tests/cli/test_explain.py tests/cli/test_replay.py \
    tests/sources/test_{hf,arrow,parquet,jsonl,tokens,iterable,resolve,chat}.py "$@"
