#!/usr/bin/env bash
# An installed wheel tells the story too: builds one and runs it away from the checkout.
set -euo pipefail
python=$(realpath -s "$1")
checkout=$PWD
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$room" "$checkout"
"$python" -m pip install --quiet --no-deps --target "$room/site" "$room"/assay-*.whl
cd "$room"
PYTHONPATH=$room/site "$python" -c "
import engine
assert engine.__file__.startswith('$room/site'), engine.__file__
from engine.shell import main
main()" run story -p "Once upon a time" -n 30 --seed 7
