#!/usr/bin/env bash
# Set up what is needed and run every check: lint, format, types, import direction, tests.
# Arguments go to pytest; with arguments, only pytest runs.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
if [ $# -gt 0 ]; then
    exec pytest "$@"
fi
ruff check .
ruff format --check .
mypy streampack demo
lint-imports
pytest --numprocesses 2
