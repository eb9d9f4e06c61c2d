#!/usr/bin/env bash
# Transformers 5, datasets 5, TRL, Lightning, torchtitan and Megatron-LM as installed, in an
# environment of their own (.venv-frameworks). Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" frameworks
exec pytest -m "not gpu" tests/frameworks tests/watching/test_page.py tests/batch/test_batch.py \
    tests/hf/test_consumers.py tests/forms/test_equal_losses.py \
    tests/images/test_images.py tests/images/test_losses.py tests/images/test_whole_processors.py \
    tests/films tests/sounds \
    tests/benchmarks/test_checked_loaders.py \
    tests/tables tests/iterables/test_{hf,iterable,table}.py tests/formats/test_arrow.py tests/chats/test_chat_in_memory.py "$@"
