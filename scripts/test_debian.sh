#!/usr/bin/env bash
# Shards as other programs write them: pigz, pbzip2, bgzip (of tabix), zstd and GNU tar. Installs
# their Debian packages, as root, if a program is missing. Arguments go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
for program in pigz pbzip2 bgzip zstd pzstd tar; do
    if ! command -v "$program" >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends pigz pbzip2 tabix zstd tar
        break
    fi
done
exec pytest -m debian "$@"
