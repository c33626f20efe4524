"""The inference engine: loads a GGUF model and generates text. All arithmetic is in `kernels`.

>>> from engine import Engine, SamplingParams

Names are imported lazily, so that `import engine` is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.checks import PromptError
    from engine.engine import Engine
    from engine.generation.completion import Piece
    from engine.options import Options
    from engine.policies.duo_attention import DuoAttention
    from engine.policies.h2o import H2O
    from engine.policies.keydiff import KeyDiff
    from engine.policies.knorm import Knorm
    from engine.policies.minference import MInference
    from engine.policies.minicache import MiniCache
    from engine.policies.pyramidkv import PyramidKV
    from engine.policies.quest import Quest
    from engine.policies.snapkv import SnapKV
    from engine.policies.streaming_llm import StreamingLLM
    from engine.sampling.params import SamplingParams
    from engine.sampling.structured_params import StructuredOutputsParams
    from engine.schedule.asynchronous import AsyncEngine
    from engine.speculation.settings import (
        MTP,
        Linear,
        Lookahead,
        LookaheadTrie,
        PromptLookup,
        Tree,
    )

__all__ = [
    "H2O", "MTP", "AsyncEngine", "DuoAttention", "Engine", "KeyDiff", "Knorm", "Linear",
    "Lookahead", "LookaheadTrie", "MInference", "MiniCache", "Options", "Piece", "PromptError",
    "PromptLookup", "PyramidKV", "Quest", "SamplingParams", "SnapKV", "StreamingLLM",
    "StructuredOutputsParams", "Tree",
]  # fmt: skip

_HOMES = {
    "AsyncEngine": "engine.schedule.asynchronous",
    "Engine": "engine.engine",
    "DuoAttention": "engine.policies.duo_attention",
    "H2O": "engine.policies.h2o",
    "KeyDiff": "engine.policies.keydiff",
    "Knorm": "engine.policies.knorm",
    "MInference": "engine.policies.minference",
    "MiniCache": "engine.policies.minicache",
    "Options": "engine.options",
    "Piece": "engine.generation.completion",
    "PromptError": "engine.checks",
    "PyramidKV": "engine.policies.pyramidkv",
    "SamplingParams": "engine.sampling.params",
    "Quest": "engine.policies.quest",
    "SnapKV": "engine.policies.snapkv",
    "StreamingLLM": "engine.policies.streaming_llm",
    "StructuredOutputsParams": "engine.sampling.structured_params",
    **dict.fromkeys(
        ("Linear", "Lookahead", "LookaheadTrie", "MTP", "PromptLookup", "Tree"),
        "engine.speculation.settings",
    ),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
