#!/usr/bin/env bash
# The lowest versions that pyproject.toml allows, torch included, in an environment of their own
# (.venv-lowest), with Python 3.10 as PYTHON. What needs mosaicml-streaming or moto to write MDS or to
# serve S3 is left out.
export PYTHON="${PYTHON:-python3.10}"
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" lowest
exec pytest -k "not mds and not object_store and not s3 and not any_ranks" \
    tests/packing tests/packers tests/limits tests/window tests/lane tests/orders tests/hooks tests/test_loader.py \
    tests/cli/test_explain.py tests/cli/test_replay.py \
    tests/formats/test_{arrow,parquet,jsonl,tokens}.py tests/iterables/test_{hf,iterable}.py \
    tests/sources/test_resolve.py tests/chats/test_chat.py "$@"
