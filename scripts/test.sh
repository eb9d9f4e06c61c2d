#!/usr/bin/env bash
# Set up what is needed and run every check: lint, format, types, import direction, tests.
# Arguments go to pytest; with arguments, only pytest runs.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
if [ $# -gt 0 ]; then
    exec pytest "$@"
fi
# One core compiles the kernels while the other one runs the checks. Otherwise each process of the
# tests compiles them, as in a fresh clone.
streampack warm &>"$environment/warm.txt" &
warming=$!
ruff check .
ruff format --check .
mypy streampack demo
lint-imports
wait "$warming" || { cat "$environment/warm.txt" >&2 && exit 1; }
# Each process begins with a third of the tests in a row, so most folders make their corpora once. The
# third one uses the two cores while others wait, which is a tenth of their time.
pytest --numprocesses 3 --dist worksteal
