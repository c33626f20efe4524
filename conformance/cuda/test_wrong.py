"""The judge on wrong CUDA kernels: what a small edit of a source breaks, it must reject."""

from pathlib import Path

import pytest

from conformance.cuda.edits.edit import Edit
from conformance.cuda.edits.table import EDITS
from conformance.cuda.emulator import compiler
from kernels.cuda.current import current
from kernels.cuda.launch import FOLDER
from kernels.judge import judge


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edited_kernel_is_rejected(edit: Edit, tmp_path: Path, record_property) -> None:
    """It compiles, and does not survive its op's quick cases."""
    kernel = edit.kernel(tmp_path)
    for launch in kernel.launches:
        current().prepare(launch)
    cases = kernel.spec.quick_cases(kernel.format)
    verdicts = (judge(kernel, case) for case in cases if kernel.takes(case.shape))
    rejected = any(not verdict.passed for verdict in verdicts)
    record_property("planted", (str(edit), rejected))
    assert rejected, f"{edit} passed every quick case"


def test_every_source_is_edited() -> None:
    """Each file of CUDA code has its bugs, and no two have one name."""
    files = {path.name for path in (*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh"))}
    assert files == {edit.file for edit in EDITS}
    assert len({str(edit) for edit in EDITS}) == len(EDITS)
