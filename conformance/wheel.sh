#!/usr/bin/env bash
# An installed wheel tells the story too: builds one and runs it away from the checkout.
set -euo pipefail
python=$(realpath -s "$1")
checkout=$PWD
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$room" "$checkout"
"$python" -m pip install --quiet --no-deps --target "$room/site" "$room"/assay-*.whl
mkdir -p "$room/elsewhere/data"  # beside files of our names
cd "$room/elsewhere"
tee engine.py bench.py reference.py kernels.py >/dev/null <<< "raise SystemExit(__file__)"
export PYTHONPATH=$room/site
"$python" -c "
import assay, sys
assay.frames, assay.Engine
for room in ('assay', 'reference', 'kernels', 'engine', 'bench'):
    assert sys.modules[room].__file__.startswith('$room/site'), sys.modules[room]"
"$python" -m assay run story -p "Once upon a time" -n 30 --seed 7
"$python" -m assay certify --op relu --again
"$python" -P -c "
import sys
sys.modules['pandas'] = None  # which a plain install lacks
from engine.shell import main
sys.argv[1:] = 'op relu --shape tokens=1,width=64 -t 1'.split()
main()"
