#!/usr/bin/env bash
# Tags the newest commit of main with the package's version and pushes the tag; the workflow
# `release.yml` does the rest. Run scripts/release_check.sh before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' streampack/__init__.py)
python3 scripts/release_notes.py "$version"
if [ -n "$(git status --porcelain)" ]; then
    echo "The checkout has changes that are not committed: see git status." >&2
    exit 1
fi
git fetch --quiet --tags origin main
if [ "$(git rev-parse HEAD)" != "$(git rev-parse FETCH_HEAD)" ]; then
    echo "HEAD is not the newest commit of origin's main: check out main, and pull or push." >&2
    exit 1
fi
git tag --annotate "v$version" --message "streampack $version"
git push origin "refs/tags/v$version"
