"""Golden vectors: outputs of the references, stored once."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from data import golden
from data.golden import make
from reference.table import OPS

every_op = pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())


def distance(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want|, zero between equal infinities."""
    with np.errstate(invalid="ignore"):
        return np.where(got == want, 0, np.abs(got.astype(float) - want.astype(float)))


@every_op
def test_references_reproduce_their_golden_vectors(op):
    """No reference has changed: integers to the bit, the rest to a millionth of the bound."""
    cases = list(golden.cases(op.name))
    assert cases
    for inputs, outputs in cases:
        got = op.expected(inputs)
        bounds = op.bound(inputs, outputs)
        assert got.keys() == outputs.keys()
        for name, want in outputs.items():
            assert (distance(got[name], want) <= 1e-6 * bounds[name]).all()


def test_the_index_has_every_files_hash():
    """Tables, files and hashes agree, and together they stay below 1.75 megabytes."""
    index = golden.index()
    files = {path.stem: path for path in golden.FOLDER.glob("*.npz")}
    assert set(index) == set(files) == set(OPS), "run: python -m data.golden.make"
    for op, path in files.items():
        assert golden.sha256(path) == index[op]["sha256"], f"{path.name} is not what was made"
        assert len(index[op]["cases"]) == len(list(golden.cases(op)))
    assert sum(path.stat().st_size for path in files.values()) < 7 * 2**18


def test_golden_files_are_reproducible(tmp_path):
    """Two runs of the one command write identical files."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        make.main(folder=tmp_path / folder)
    for first in sorted((tmp_path / "a").iterdir()):
        assert first.read_bytes() == (tmp_path / "b" / first.name).read_bytes()


def test_a_changed_reference_is_detected():
    """A reference that forgets eps no longer gives its golden vectors."""
    rms_norm = OPS["rms_norm"]
    (inputs, outputs), *_ = golden.cases("rms_norm")
    assert_array_equal(rms_norm.expected(inputs)["out"], outputs["out"])
    forgetful = rms_norm.reference(**{**inputs, "eps": 0.0})
    bound = rms_norm.bound(inputs, outputs)["out"]
    assert (distance(forgetful, outputs["out"]) > 1e-6 * bound).any()
