#!/usr/bin/env bash
# Builds the documentation site into site/; a warning, such as a broken link, is an error. With
# arguments, runs mkdocs with them: `bash scripts/docs.sh serve` shows the pages while you write.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" docs
export NO_MKDOCS_2_WARNING=1
if [ $# -gt 0 ]; then
    exec mkdocs "$@"
fi
exec mkdocs build --strict  # not with --quiet, which keeps warnings from being counted
