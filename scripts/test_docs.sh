#!/usr/bin/env bash
# The snippets of the README and the pages, and the examples. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
exec pytest -m docs "$@"
