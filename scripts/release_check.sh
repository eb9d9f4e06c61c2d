#!/usr/bin/env bash
# Everything that a release must pass; about half an hour. Tests on a GPU run where there is one.
set -euo pipefail
scripts=$(dirname "${BASH_SOURCE[0]}")
for check in test_wheel docs test test_docs test_lowest test_slow test_debian test_stores test_frameworks; do
    echo "== $check"
    bash "$scripts/$check.sh"
done
echo "== test -m frameworks"
bash "$scripts/test.sh" -m frameworks  # with the versions of the other tests
if command -v nvidia-smi >/dev/null; then
    echo "== test -m gpu"
    bash "$scripts/test.sh" -m gpu
else
    echo "== no GPU here: run 'bash scripts/test.sh -m gpu' on a machine that has one"
fi
