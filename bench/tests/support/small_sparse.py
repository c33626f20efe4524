"""A small sparse model with random weights, for tests of what the lab says of such."""

from pathlib import Path
from unittest.mock import patch

from data import random_model
from data.random_model import Predictors
from data.shapes import ModelShape
from reference.formats import FORMATS

FFN, HIDDEN, SHARE = 512, 128, 0.25
SHAPE = ModelShape(
    blocks=2, hidden=HIDDEN, ffn=FFN, heads=2, kv_heads=2, head_dim=64, vocab=300, context=64,
    gate="reglu",
)  # fmt: skip


def write(out: Path) -> None:
    with patch.dict(random_model.SHAPES, small=SHAPE):
        random_model.write(
            out, "small", random_model.made_up_vocabulary(300), FORMATS["F16"],
            Predictors(256, SHARE), 0, lambda *_: None,
        )  # fmt: skip
