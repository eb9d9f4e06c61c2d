#!/usr/bin/env bash
# Set up what is needed and run the demo; arguments go to `python -m demo`.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" demo
exec python -m demo "$@"
