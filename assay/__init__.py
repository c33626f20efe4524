"""Assay's public names: an engine, and the lab that its kernels are judged in.

>>> from assay import Engine, SamplingParams
>>> with Engine.load("story", threads=2) as engine:
...     print("".join(p.text for p in engine.stream("Once", SamplingParams(max_tokens=20))))

- `Engine` continues text, with `Options` of how and `SamplingParams` of which tokens; it gives
  `RequestOutput`s, or `Piece`s as they come, and has `Timings`. `AsyncEngine` is one for asyncio.
  What they raise is an `EngineError`.
- `Linear`, `Tree`, `PromptLookup`, `LookaheadTrie`, `Lookahead` and `MTP` are ways to draft
  tokens.
- `SnapKV`, `PyramidKV`, `H2O`, `Knorm`, `KeyDiff` and `StreamingLLM` say which cells of a long
  prompt are kept, `Quest` which of its pages a token reads, `DuoAttention` which heads keep all,
  `MiniCache` that blocks share them.
- `MInference` says what the tokens of a long prompt see.
- `OPS` has every op's formula, bound and cases by name, `find` gives the kernel of a name, and
  `call` runs one alone: `call(find("rms_norm/cpu/generic"), inputs)["out"]`.
- `judge("rms_norm/cpu/generic")` tries a kernel and returns its certificate.
- `frames` has what was measured as tables of pandas: `frames.summary(frames.load())`.

Each is imported when it is first asked for. After `import assay` the names reference, kernels and
engine are our packages, and so is bench after `assay.frames`, whatever lies in the working folder;
docs/decisions/036-top-level-module-names.md says why.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from assay.rooms import claim

if TYPE_CHECKING:
    from assay.judging import judge
    from bench.race import frames
    from engine.cache.cells import ContextFullError
    from engine.cache.session import SessionError
    from engine.chat import ChatError
    from engine.checks import NumericalError, PromptError
    from engine.config import ModelError
    from engine.engine import Engine
    from engine.errors import BusyError, ClosedError, EngineError, PackageError
    from engine.generation.completion import Piece
    from engine.generation.results import CompletionOutput, Logprob, RequestOutput
    from engine.generation.timings import Timings
    from engine.gguf.cursor import GGUFError
    from engine.offload.disk import OffloadError
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
    from engine.sampling.params import SamplingError, SamplingParams
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
    from engine.speculation.vocabularies import VocabularyError
    from engine.tokenizer.vocab import TokenizerError
    from kernels.call import call
    from kernels.dispatch import UncertifiedError
    from kernels.shapes import ShapeError
    from kernels.table import find_any as find
    from reference.table import OPS

__all__ = [
    "H2O", "MTP", "OPS", "AsyncEngine", "BusyError", "ChatError", "ClosedError",
    "CompletionOutput", "ContextFullError", "DuoAttention", "Engine", "EngineError",
    "GGUFError", "KeyDiff", "Knorm", "Linear", "Logprob", "Lookahead", "LookaheadTrie",
    "MInference", "MiniCache", "ModelError", "NumericalError", "OffloadError", "Options",
    "PackageError", "Piece", "PromptError", "PromptLookup", "PyramidKV", "Quest",
    "RequestOutput", "SamplingError", "SamplingParams", "SessionError", "ShapeError", "SnapKV",
    "StreamingLLM", "StructuredOutputsParams", "Timings", "TokenizerError", "Tree",
    "UncertifiedError", "VocabularyError", "call", "find", "frames", "judge",
]  # fmt: skip

_HOMES = {
    "DuoAttention": "engine.policies.duo_attention:DuoAttention",
    "H2O": "engine.policies.h2o:H2O",
    "OPS": "reference.table:OPS",
    "AsyncEngine": "engine.schedule.asynchronous:AsyncEngine",
    "ChatError": "engine.chat:ChatError",
    "CompletionOutput": "engine.generation.results:CompletionOutput",
    "ContextFullError": "engine.cache.cells:ContextFullError",
    "Engine": "engine.engine:Engine",
    "GGUFError": "engine.gguf.cursor:GGUFError",
    **{
        name: f"engine.errors:{name}"
        for name in ("BusyError", "ClosedError", "EngineError", "PackageError")
    },
    "KeyDiff": "engine.policies.keydiff:KeyDiff",
    "Knorm": "engine.policies.knorm:Knorm",
    "Linear": "engine.speculation.settings:Linear",
    "Logprob": "engine.generation.results:Logprob",
    "Lookahead": "engine.speculation.settings:Lookahead",
    "LookaheadTrie": "engine.speculation.settings:LookaheadTrie",
    "MInference": "engine.policies.minference:MInference",
    "MiniCache": "engine.policies.minicache:MiniCache",
    "ModelError": "engine.config:ModelError",
    "NumericalError": "engine.checks:NumericalError",
    "OffloadError": "engine.offload.disk:OffloadError",
    "Options": "engine.options:Options",
    "MTP": "engine.speculation.settings:MTP",
    "Piece": "engine.generation.completion:Piece",
    "PromptError": "engine.checks:PromptError",
    "PromptLookup": "engine.speculation.settings:PromptLookup",
    "PyramidKV": "engine.policies.pyramidkv:PyramidKV",
    "RequestOutput": "engine.generation.results:RequestOutput",
    "SamplingError": "engine.sampling.params:SamplingError",
    "SamplingParams": "engine.sampling.params:SamplingParams",
    "SessionError": "engine.cache.session:SessionError",
    "ShapeError": "kernels.shapes:ShapeError",
    "Quest": "engine.policies.quest:Quest",
    "SnapKV": "engine.policies.snapkv:SnapKV",
    "StreamingLLM": "engine.policies.streaming_llm:StreamingLLM",
    "StructuredOutputsParams": "engine.sampling.structured_params:StructuredOutputsParams",
    "Timings": "engine.generation.timings:Timings",
    "TokenizerError": "engine.tokenizer.vocab:TokenizerError",
    "Tree": "engine.speculation.settings:Tree",
    "UncertifiedError": "kernels.dispatch:UncertifiedError",
    "VocabularyError": "engine.speculation.vocabularies:VocabularyError",
    "call": "kernels.call:call",
    "find": "kernels.table:find_any",
    "frames": "bench.race.frames",
    "judge": "assay.judging:judge",
}

claim("reference", "kernels", "engine")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    claim(_HOMES[name].partition(".")[0])
    return resolve_name(_HOMES[name])


def __dir__() -> list[str]:
    return __all__
