#!/usr/bin/env bash
# Builds the wheel, looks at what is in it, and imports the package and its program from it.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
pip wheel . --no-deps -qq --disable-pip-version-check --wheel-dir "$folder"
python -m zipfile -e "$folder"/streampack-*.whl "$folder/wheel"
cd "$folder"
export PYTHONPATH="$folder/wheel"
(cd wheel && ls -d streampack streampack-*.dist-info && ls streampack/py.typed streampack/__init__.pyi)
if others=$(ls wheel | grep -vE '^streampack(-.*\.dist-info)?$'); then
    echo "The wheel also holds: $others" >&2
    exit 1
fi
python -c 'import streampack; assert "/wheel/" in streampack.__file__; streampack.PackedLoader'
python -m streampack --help >/dev/null
