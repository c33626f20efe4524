"""Table of all KV cache policies, by their names in the shell."""

from dataclasses import fields
from typing import Any

from engine.errors import ModelError
from engine.policies.duo_attention import DuoAttention
from engine.policies.h2o import H2O
from engine.policies.keydiff import KeyDiff
from engine.policies.knorm import Knorm
from engine.policies.minicache import MiniCache
from engine.policies.policy import Policy
from engine.policies.pyramidkv import PyramidKV
from engine.policies.quest import Quest
from engine.policies.snapkv import SnapKV
from engine.policies.streaming_llm import StreamingLLM

AnyPolicy = Policy | Quest | DuoAttention | MiniCache

POLICIES: dict[str, type[AnyPolicy]] = {
    "streaming_llm": StreamingLLM,
    "knorm": Knorm,
    "keydiff": KeyDiff,
    "snapkv": SnapKV,
    "h2o": H2O,
    "pyramidkv": PyramidKV,
    "quest": Quest,
    "duoattention": DuoAttention,
    "minicache": MiniCache,
}


def parse_policy(text: str) -> AnyPolicy:
    """Parse a policy such as `snapkv:capacity=1024,window=32`; text fields name files."""
    name, _, given = text.partition(":")
    if name not in POLICIES:
        raise ModelError(f"kv_policy is {name!r}: want {', '.join(POLICIES)}")
    known = {field.name: field.type in (str, "str") for field in fields(POLICIES[name])}
    numbers: dict[str, Any] = {}
    for part in given.split(",") if given else ():
        key, _, value = part.partition("=")
        if key not in known or not (known[key] or value.isdecimal()):
            words = (f"{n}=FILE" if file else n for n, file in known.items())
            raise ModelError(
                f"kv_policy {name} has {part!r}: want NAME=NUMBER, of {', '.join(words)}"
            )
        numbers[key] = value if known[key] else int(value)
    return POLICIES[name](**numbers)


def format_policy(policy: AnyPolicy) -> str:
    """The text of a policy for `parse_policy`; raises `ModelError` for classes not in the table."""
    name = next((name for name, kind in POLICIES.items() if type(policy) is kind), "")
    if not name:
        raise ModelError(
            f"kv_policy {type(policy).__name__} is none of {', '.join(POLICIES)}: it cannot be"
            " written as a text"
        )
    numbers = {f.name: getattr(policy, f.name) for f in fields(policy)}
    # defaults that are left out
    defaults = {"beta": 0, "heads": ""}
    parts = (f"{key}={value}" for key, value in numbers.items() if value != defaults.get(key, -1))
    return f"{name}:{','.join(parts)}"
