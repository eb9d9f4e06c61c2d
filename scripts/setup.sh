# Sourced by the other scripts with the name of an environment: `demo`, `development`, `frameworks`,
# `stores`, `lowest` or `docs`. `development` adds to the folder of `demo`.
# Makes it, once per change of the files that name its packages, and puts its programs on the path. PYTHON
# chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Installs with uv, as pip is set up, or with pip if there is no uv or it fails.
pip_install() {
    if [ -z "${uv+known}" ]; then
        find_uv
    fi
    if [ -n "$uv" ]; then
        local status=0
        "$uv" pip install --python "$environment/bin/python" --index-strategy unsafe-best-match \
            ${uv_settings[@]+"${uv_settings[@]}"} "$@" || status=$?
        if [ "$status" = 0 ]; then
            return
        elif [ "$status" -ge 128 ]; then # Ctrl-C
            exit "$status"
        fi
        echo "uv failed with the error above; pip, which takes minutes, tries it instead ..." >&2
        uv=
    fi
    "$environment/bin/python" -m pip install --disable-pip-version-check "$@"
}

# Sets `uv`: the one on the path, else one installed into the environment, else empty.
find_uv() {
    uv=$(command -v uv || true)
    if [ -z "$uv" ] || ! "$uv" --version >/dev/null 2>&1; then
        uv=$environment/bin/uv
        if ! "$uv" --version >/dev/null 2>&1 &&
            ! "$environment/bin/python" -m pip install -q --disable-pip-version-check 'uv>=0.5'; then
            echo "uv cannot be installed; pip takes its place, and some minutes ..." >&2
            uv=
        fi
    fi
    eval "$("$environment/bin/python" scripts/pip_settings.py)"
}

install_demo() { pip_install --constraint constraints.txt --editable '.[demo]'; }

install_development() {
    pip_install --constraint constraints.txt --editable '.[dev]'
    # Only its data is wanted (a test of chats); what it depends on is large and pinned.
    pip_install --no-deps bfcl-eval==2026.3.23
    # mosaicml-streaming brings a build for CUDA, which cannot be imported beside a CPU build of
    # torch, and libraries that find it try to. Nothing here needs it.
    "$environment/bin/python" -m pip uninstall -qq -y torchvision
    echo "$wanted" >"$environment/.installed-demo"
}

# Transformers 5, TRL, Lightning, litgpt, torchtitan and Megatron-LM, without mosaicml-streaming.
install_frameworks() {
    pip_install --requirement scripts/frameworks.txt --editable .
    # What they depend on is large, partly for GPUs alone, or older than the above.
    # On a CPU build of torch only tests can import torchvision (tests/support/torchvision_on_cpu).
    pip_install --no-deps 'torchvision==0.28.0' 'litgpt==0.5.13' 'torchtitan==0.3.0' 'spmd_types==0.2.3' 'megatron-core>=0.16,<0.17'
}

# gcsfs and adlfs want newer Google and Azure libraries than mosaicml-streaming allows.
install_stores() {
    pip_install --requirement scripts/stores.txt --editable .
    if ! command -v npm >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends nodejs npm
    fi
    npm install --silent --no-audit --no-fund --prefix "$environment/azurite" azurite@3
}

# Packages of the tests that pin others (mosaicml-streaming, moto) are left out.
install_lowest() {
    "$environment/bin/python" -m pip install -q uv
    "$environment/bin/uv" pip compile --quiet --resolution lowest-direct --only-binary :all: \
        --extra all --python "$environment/bin/python" --no-header --no-annotate pyproject.toml \
        >"$environment/lowest.txt"
    pip_install --requirement "$environment/lowest.txt" pytest hypothesis
    pip_install --no-deps --editable .
}

install_docs() { pip_install --requirement scripts/docs.txt; }

stamp=.installed
case $1 in
demo) environment=.venv named_by="pyproject.toml constraints.txt" stamp=.installed-demo ;;
development) environment=.venv named_by="pyproject.toml constraints.txt" ;;
frameworks) environment=.venv-frameworks named_by="pyproject.toml scripts/frameworks.txt" ;;
stores) environment=.venv-stores named_by="pyproject.toml scripts/stores.txt" ;;
lowest) environment=.venv-lowest named_by="pyproject.toml" ;;
docs) environment=.venv-docs named_by="scripts/docs.txt" ;;
esac
wanted=$(cat $named_by | cksum)
if [ "$(cat "$environment/$stamp" 2>/dev/null || true)" != "$wanted" ]; then
    echo "Setting up $environment ..."
    rm -f "$environment/$stamp"
    "${PYTHON:-python3}" -m venv "$environment"
    "install_$1"
    echo "$wanted" >"$environment/$stamp"
fi
export PATH="$PWD/$environment/bin:$PATH"
# Images of containers often set it. Then each process compiles every module that it imports, which is most of
# its time: 5.6 s instead of 2.1 s for torch.
unset PYTHONDONTWRITEBYTECODE
