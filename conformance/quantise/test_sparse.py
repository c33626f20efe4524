"""`assay quantize` of sparse models: PowerInfer's formats of predictors, and a file that still runs
sparse."""

import numpy as np
import pytest

from conformance.support.models.sparse_files import SMALL_MODELS
from conformance.support.models.steps import loaded
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise

SMALL = SMALL_MODELS["F32"]


@pytest.mark.parametrize(
    ("type_", "matrices", "predictors"),
    [("Q4_0", "Q4_0", "Q4_0"), ("Q8_0", "Q8_0", "Q5_0"), ("F16", "F16", "F16")],
)
def test_predictors_have_powerinfers_formats(type_, matrices, predictors, tmp_path):
    """Q4_0 under Q4_0 and Q5_0 under other blocks; magic and threshold stay."""
    source, out = SMALL.write(tmp_path / "f32.gguf"), tmp_path / "small.gguf"
    with GGUFFile(source) as file:
        quantise(file, out, Recipe(type_), threads=1)
    with GGUFFile(source) as before, GGUFFile(out) as after:
        assert after.magic == "PWRI"
        key = "powerinfer.sparse_threshold"
        assert after.metadata[key] == before.metadata[key]
        found = {name: info.type_name for name, info in after.tensors.items()}
    for i in range(SMALL.blocks):
        assert {found[f"blk.{i}.fc{n}.weight"] for n in (1, 2)} == {predictors}
        rows = ("ffn_gate", "ffn_up", "ffn_down_t")
        assert {found[f"blk.{i}.{name}.weight"] for name in rows} == {matrices}
    with loaded(out, context=32, sparse="on") as model:
        assert np.isfinite(model.evaluate([3, 4, 5], 0)).all()
