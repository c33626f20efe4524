"""Certificates of CUDA kernels become invalid when code that affects them changes."""

import json

import pytest

from conformance.support.rooms import Copy

NAMES = (
    "rms_norm/cuda/generic", "quantise_activations/cuda/generic", "linear/cuda/generic/F32",
    "linear/cuda/generic/Q4_0", "attention/cuda/generic/F16", "attention/cuda/tensor/F16",
    "sparse_axpy/cuda/generic/F16", "linear/cuda/bf16/F16",
)  # fmt: skip
RMS_NORM, ROUNDING, LINEAR_F32, LINEAR_Q4_0, ATTENTION, TENSOR, AXPY, LINEAR_BF16 = NAMES
FUSED = ["add_norm_round/cuda/generic", "linear_trio/cuda/generic/Q4_0"]  # affected by every change

# Edits of files (old text, new text), and the kernels whose certificates they invalidate.
CHANGES: dict[str, tuple[tuple[str, str, str], list[str]]] = {
    "nothing": (("kernels/cuda/runtime/launch.py", "0 in self.blocks", "0 in self.blocks"), []),
    "threads-of-a-row": (
        ("kernels/cuda/single.py", '"rms_norm": fours', '"rms_norm": one_block'),
        [RMS_NORM],
    ),
    "elements-of-a-thread": (
        ("kernels/cuda/single.py", '"hidden", each=4', '"hidden", each=8'),
        [ROUNDING, LINEAR_Q4_0],  # runs after ROUNDING
    ),
    "rows-of-a-warp": (
        ("kernels/cuda/linear/linear.py", '"ROWS_OF_1", ROWS, 2', '"ROWS_OF_1", ROWS, 4'),
        [LINEAR_F32, LINEAR_Q4_0, LINEAR_BF16],
    ),
    "when-there-are-many": (
        (
            "kernels/cuda/linear/linear.py",
            'shape["tokens"] > max(FEW)',
            'shape["tokens"] >= max(FEW)',
        ),
        [LINEAR_F32, LINEAR_Q4_0, LINEAR_BF16],
    ),
    "what-a-library-is-asked": (
        ("kernels/cuda/runtime/cublas.py", "cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N",
         "cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_T"),
        [LINEAR_BF16],
    ),
    "shared-memory": (
        ("kernels/cuda/attention/attention.py", "(32, 64), 64,", "(32, 64), 32,"),
        [ATTENTION, TENSOR],
    ),
    "scratch": (
        ("kernels/cuda/sparse/sparse_axpy.py", '"LEAST_NEURONS", 512', '"LEAST_NEURONS", 256'),
        [AXPY],
    ),
    "what-it-takes": (
        ("kernels/cuda/attention/attention.py", "TENSOR_HEADS = (64, 128)", "TENSOR_HEADS = (64,)"),
        [ATTENTION, TENSOR],
    ),
    "what-all-grids-are": (
        ("kernels/cuda/runtime/launch.py", "0 in self.blocks", "self.blocks[0] == 0"),
        list(NAMES),
    ),
}  # fmt: skip
DIGESTS = """
import json, os, sys
import numba  # takes the longest
from pathlib import Path

class Device:
    identity = library = "any"

names, changes = json.loads(sys.argv[1]), json.loads(sys.argv[2])
for name, ((file, old, new), _) in changes.items():
    if os.fork() == 0:  # so that nothing is imported before it is changed
        path = Path(file)
        text = path.read_text()
        assert text.count(old) == 1, (file, old)
        path.write_text(text.replace(old, new))
        from kernels.certificates import Key
        from kernels.cuda.runtime.current import taking_the_place
        from kernels.cuda.fusion.fusions import EVERY_CUDA
        with taking_the_place(Device()):
            found = {k.name: Key.of(k).digest for k in EVERY_CUDA}
        print(json.dumps([name, [found[name] for name in names]]), flush=True)
        path.write_text(text)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.fixture(scope="module")
def outdated(tmp_path_factory):
    """For every edit, made in a copy of the rooms: the kernels whose key it changes."""
    copy = Copy(tmp_path_factory.mktemp("rooms"))
    names = [*NAMES, *FUSED]
    lines = copy.python(DIGESTS, json.dumps(names), json.dumps(CHANGES)).splitlines()
    digests: dict[str, list[str]] = dict(map(json.loads, lines))
    return {
        change: [n for n, a, b in zip(names, found, digests["nothing"], strict=True) if a != b]
        for change, found in digests.items()
    }


@pytest.mark.parametrize("change", CHANGES)
def test_editing_launch_code_invalidates_certificates(outdated, change):
    """Grids, shared memory, scratch, supported sizes and library calls are bound."""
    expected = CHANGES[change][1]
    assert outdated[change] == expected + (FUSED if expected else [])
