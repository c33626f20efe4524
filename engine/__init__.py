"""From a GGUF file to text: state and order; the arithmetic is the certified kernels'.

>>> from engine import Engine, SamplingParams

Names are imported when first asked for, so that `import engine` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.completion import Piece
    from engine.engine import Engine, PromptError
    from engine.options import Options
    from engine.sampling_params import SamplingParams

__all__ = ["Engine", "Options", "Piece", "PromptError", "SamplingParams"]

_HOMES = {
    "Engine": "engine.engine",
    "Options": "engine.options",
    "Piece": "engine.completion",
    "PromptError": "engine.engine",
    "SamplingParams": "engine.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
