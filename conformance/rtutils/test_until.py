"""On a machine too slow for all of it, the gate ends exhaustive tests at a time, visibly."""

import os
import sys

from conformance.support.child import run


def test_exhaustive_tests_are_skipped_after_the_time_limit(request):
    """The skipped ones are those of CUDA's tiles, all of which are exhaustive."""
    options = ("-q", "-p", "no:cacheprovider", "conformance/cuda/test_tiles.py")
    environment = {**os.environ, "ASSAY_UNTIL": "0"}
    found = run(
        sys.executable, "-m", "pytest", *options, cwd=request.config.rootpath, env=environment
    )
    assert "not tried: the time of ASSAY_UNTIL is over" in found.stdout, found.stdout
    assert " passed" not in found.stdout
