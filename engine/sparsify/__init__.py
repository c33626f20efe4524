"""Making sparse models: what the neurons do over a text, predictors of it, the file with both.

`engine.sparsify.sparsify` and `engine.sparsify.train` want PyTorch and are imported by name.
"""

from engine.sparsify.export import Predictor, check, export
from engine.sparsify.gather import Gathered, SparsifyError, gather, relu_model

__all__ = ["Gathered", "Predictor", "SparsifyError", "check", "export", "gather", "relu_model"]
