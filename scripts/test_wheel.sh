#!/usr/bin/env bash
# Builds the wheel and the sdist, looks at what is in them, installs the wheel in a fresh environment,
# as a user does, and runs the README's first lines: without extras, then with all of them. PYTHON
# chooses the interpreter.
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

readme=$PWD/README.md
cd "$folder" # so that the checkout cannot be imported
unset PYTHONPATH
for extras in "" "[all]"; do
    began=$SECONDS
    user/bin/python -m pip install -qq --disable-pip-version-check "streampack$extras @ file://$wheel"
    echo "installed streampack$extras in $((SECONDS - began)) s"
    user/bin/python -m pip check
    user/bin/python - "$readme" <<'EOF'
import contextlib
import io
import re
import sys
from importlib.metadata import version
from pathlib import Path

import streampack

assert "torch" not in sys.modules, "import streampack loads torch"
assert streampack.__version__ == version("streampack"), "two versions"
page = Path(sys.argv[1]).read_text()
snippet, printed = (
    re.findall(rf"```{language}\n(.*?)```", page, re.S)[0] for language in ("python", "text")
)
with contextlib.redirect_stdout(io.StringIO()) as said:
    exec(compile(snippet, "README.md", "exec"), {})
assert said.getvalue() == printed, said.getvalue()
print("the README's first lines print what it says")
EOF
    if [ -n "$extras" ]; then
        user/bin/streampack --version
    elif user/bin/streampack --version 2>said; then
        echo "The program runs without its extra?" >&2
        exit 1
    else
        grep -qF 'streampack[cli]' said # what to install
    fi
done
