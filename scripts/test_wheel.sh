#!/usr/bin/env bash
# Builds the wheel and the sdist, looks at what is in them, and installs the wheel as a user does: for
# every Python from 3.10 to 3.13 that is here, in an empty environment, with the newest packages that
# are allowed and with the lowest, without extras and then with [all]. There it runs
# scripts/as_user.py, and mypy over a page of user code. PYTHON chooses one interpreter, VERSIONS
# "newest" or "lowest". An environment takes about 5 GB, since torch for CUDA is what an index has.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/build"
"$folder/build/bin/python" -m pip install -qq --disable-pip-version-check hatchling mypy uv
build() {
    rm -rf "$folder/dist" "$folder/unpacked"
    env "$@" "$folder/build/bin/hatchling" build -d "$folder/dist" &>"$folder/said"
    "$folder/build/bin/python" -m zipfile -e "$folder"/dist/*.whl "$folder/unpacked"
}
described() { cat "$folder"/unpacked/*.dist-info/METADATA; }

build GITHUB_REPOSITORY=owner/name
for wanted in '^Project-URL: Repository, https://github.com/owner/name$' 'owner/name/blob/HEAD/docs/' \
    'owner/name/raw/HEAD/docs/[a-z]*\.svg'; do
    described | grep -qE "$wanted" || { echo "The wheel's metadata have no $wanted." >&2 && exit 1; }
done
build --unset=GITHUB_REPOSITORY
if described | grep -E '\]\((\w|\.)' | grep -v '](https://'; then
    echo "The README in the wheel has links that lead nowhere: see above." >&2
    exit 1
fi
wheel=$(echo "$folder"/dist/streampack-*.whl)
sdist=$(echo "$folder"/dist/streampack-*.tar.gz)

(cd "$folder/unpacked" && find . -type f | cut -c3-) >"$folder/wheel.txt"
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

# The interpreter of each version: on the path, or of pyenv.
interpreters() {
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON"
        return
    fi
    for minor in 10 11 12 13; do
        for found in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
            if "$found" -c "import sys, venv; assert sys.version_info[:2] == (3, $minor)" 2>/dev/null; then
                command -v "$found"
                break
            fi
        done
    done
}

uv=$folder/build/bin/uv
user=$folder/user/bin/python
# install lowest|newest EXTRAS: the wheel, and the packages for it
install() {
    local began=$SECONDS
    if [ "$1" = lowest ]; then
        "$uv" pip compile -q --resolution lowest-direct --only-binary :all: ${2:+--extra "$2"} \
            --python "$user" --no-header --no-annotate pyproject.toml >"$folder/lowest.txt"
        "$uv" pip install -q --python "$user" -r "$folder/lowest.txt"
        "$uv" pip install -q --python "$user" --no-deps "$wheel"
    else
        "$uv" pip install -q --python "$user" "streampack${2:+[$2]} @ file://$wheel"
    fi
    "$uv" pip check -q --python "$user"
    echo "$1 packages${2:+ of [$2]} installed in $((SECONDS - began)) s"
}

as_user() { (cd "$folder" && env -u PYTHONPATH "$user" "$root/scripts/as_user.py" "$root/README.md"); }

cat >"$folder/typed.py" <<'EOF'
from streampack import PackedDataset, PackedLoader

loader = PackedLoader(PackedDataset([[1, 2, 3]], seq_len=8, batch_size=2), num_workers=2)
for batch in loader:
    ids = batch.to("cpu").input_ids.tolist()
for group in loader.accumulate(2):
    widths = [batch.seq_len for batch in group]
tokens: list[int] = list(PackedLoader(loader.dataset, transform=lambda batch: batch.num_tokens))
EOF
check_types() {
    (cd "$folder" && build/bin/mypy --strict --python-executable "$user" typed.py)
    sed 's/input_ids/imput_ids/' "$folder/typed.py" >"$folder/misspelt.py"
    if (cd "$folder" && build/bin/mypy --strict --python-executable "$user" misspelt.py >said); then
        echo "mypy does not find a misspelt field of a batch." >&2
        exit 1
    fi
    grep -qF '"PackedBatch" has no attribute "imput_ids"' "$folder/said"
}

interpreters >"$folder/interpreters"
while read -r interpreter; do
    echo "== $("$interpreter" --version)"
    for versions in ${VERSIONS:-newest lowest}; do
        "$uv" venv -q --clear --python "$interpreter" "$folder/user"
        install "$versions" ""
        as_user
        check_types
        if "$folder/user/bin/streampack" --version 2>"$folder/said"; then
            echo "The program runs without its extra?" >&2
            exit 1
        fi
        grep -qF 'pip install "rich' "$folder/said" # what to install
        install "$versions" all
        as_user
        "$folder/user/bin/streampack" --version
    done
done <"$folder/interpreters"
