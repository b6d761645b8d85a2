#!/usr/bin/env bash
# Checks and times the engine's attention on a machine with a GPU, within eight minutes: the tests marked `gpu`, then random
# weights in 1B and 8B shapes. Prints tables and, as its last line, one JSON object; ends with 1 where anything is wrong.
#
#   bench/gpu.sh                         all of it
#   bench/gpu.sh --device cpu --tiny     shows that it works, without a GPU
#
# It installs nothing and fetches nothing: torch, transformers and pytest of $PYTHON (python3, unless there is a .venv) do.
set -u
cd "$(dirname "$0")/.."
total_seconds=480
test_seconds=200
spare_seconds=20 # for imports and the last line

python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    [ -x .venv/bin/python ] && python=.venv/bin/python
fi

# --confcutdir: the conftest above them needs a database's libraries. -W: other versions warn of other things than ours.
timeout "$test_seconds" "$python" -m pytest tests/gpu --confcutdir=tests/gpu -p no:cacheprovider -W default -q 1>&2
case $? in
    0) tests=passed ;;
    124) tests="out of time" ;;
    *) tests=failed ;;
esac

left_seconds=$((total_seconds - SECONDS))
timeout "$left_seconds" "$python" -m bench.gpu --budget-seconds $((left_seconds - spare_seconds)) --tests "$tests" "$@"
