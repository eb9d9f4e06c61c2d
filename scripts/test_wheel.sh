#!/usr/bin/env bash
# Builds the wheel and the sdist, looks at what is in them, installs the wheel in a fresh environment,
# as a user does, and makes a first batch with it. PYTHON chooses the interpreter; EXTRAS=[all] adds
# extras.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/build"
"${PYTHON:-python3}" -m venv "$folder/user"
"$folder/build/bin/python" -m pip install -qq --disable-pip-version-check hatchling
"$folder/build/bin/hatchling" build -d "$folder/dist" &>"$folder/said"
wheel=$(echo "$folder"/dist/streampack-*.whl)
sdist=$(echo "$folder"/dist/streampack-*.tar.gz)

python3 -m zipfile -l "$wheel" | awk 'NR > 1 {print $1}' >"$folder/wheel.txt"
tar -tzf "$sdist" >"$folder/sdist.txt"
if grep -vE '^streampack(-[^/]*\.dist-info)?/' "$folder/wheel.txt"; then
    echo "The wheel holds what is not the package: see above." >&2
    exit 1
fi
for name in streampack/py.typed streampack/__init__.pyi '.*/licenses/LICENSE'; do
    grep -qE "^$name\$" "$folder/wheel.txt" || { echo "The wheel has no $name." >&2 && exit 1; }
done
for name in LICENSE README.md CHANGELOG.md streampack/py.typed; do
    grep -qE "^[^/]*/$name\$" "$folder/sdist.txt" || { echo "The sdist has no $name." >&2 && exit 1; }
done

cd "$folder" # so that the checkout cannot be imported
unset PYTHONPATH
began=$SECONDS
user/bin/python -m pip install -qq --disable-pip-version-check "streampack${EXTRAS:-} @ file://$wheel"
echo "installed streampack${EXTRAS:-} in $((SECONDS - began)) s"
user/bin/python -m pip check
user/bin/python - <<'EOF'
import sys
from importlib.metadata import version

import streampack

assert "torch" not in sys.modules, "import streampack loads torch"
assert streampack.__version__ == version("streampack"), "two versions"
from streampack import PackedDataset, PackedLoader

loader = PackedLoader(PackedDataset([[7] * 50] * 90, seq_len=64))
print("first batch:", next(iter(loader)))
EOF
if user/bin/python -c 'import typer' 2>/dev/null; then
    user/bin/streampack --version
elif user/bin/streampack --version 2>said; then
    echo "The program runs without its extra?" >&2
    exit 1
else
    grep -qF 'streampack[cli]' said # what to install
fi
