#!/usr/bin/env bash
# The night's tests: those that take more than about twenty seconds each, those that the gate runs in
# part, and all drawn tests with sixty-four times the examples of the gate, new in each run. Arguments
# go to pytest.
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh" development
exec pytest --hypothesis-profile night \
    -m "slow or sampled or (hypothesis and not (gpu or debian or stores or frameworks or docs))" "$@"
