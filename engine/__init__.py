"""From a GGUF file to text: state and order, with no arithmetic of its own.

>>> from engine import Engine, SamplingParams
"""

from engine.completion import Piece
from engine.engine import Engine, PromptError
from engine.model import Options
from engine.sampling_params import SamplingParams

__all__ = ["Engine", "Options", "Piece", "PromptError", "SamplingParams"]
