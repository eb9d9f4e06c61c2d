#!/usr/bin/env bash
# The tests that take more than about twenty seconds each. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
exec pytest -m slow "$@"
