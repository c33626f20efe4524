"""On a machine too slow for all of it, the gate ends exhaustive tests at a time, visibly."""

import os
import subprocess
import sys


def test_exhaustive_tests_are_skipped_after_the_time_limit(request):
    """The skipped ones are those of CUDA's tiles, all of which are exhaustive."""
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "conformance/cuda/test_tiles.py",
        ],
        cwd=request.config.rootpath,
        env={**os.environ, "ASSAY_UNTIL": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "not tried: the time of ASSAY_UNTIL is over" in found.stdout, found.stdout
    assert " passed" not in found.stdout
