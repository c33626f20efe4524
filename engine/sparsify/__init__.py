"""Makes sparse models: activation statistics over a text, predictors trained on them, and the new
file.

`engine.sparsify.sparsify` and `engine.sparsify.train` want PyTorch and are imported by name.
"""

from engine.sparsify.export import Predictor, check, export
from engine.sparsify.gather import Gathered, SparsifyError, gather, relu_model

__all__ = ["Gathered", "Predictor", "SparsifyError", "check", "export", "gather", "relu_model"]
