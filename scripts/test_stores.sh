#!/usr/bin/env bash
# Object stores as real servers: SeaweedFS, Google's API by gcp-storage-emulator, Azure's by Azurite (from
# npm), in an environment of their own (.venv-stores). Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" stores
export AZURITE="$PWD/$environment/azurite/node_modules/.bin/azurite-blob"
exec pytest -m "stores or not slow" tests/stores "$@"
