"""Every policy there is, by the name that the shell has for it."""

from dataclasses import fields

from engine.errors import ModelError
from engine.policies.h2o import H2O
from engine.policies.keydiff import KeyDiff
from engine.policies.knorm import Knorm
from engine.policies.minicache import MiniCache
from engine.policies.policy import Policy
from engine.policies.pyramidkv import PyramidKV
from engine.policies.quest import Quest
from engine.policies.snapkv import SnapKV
from engine.policies.streaming_llm import StreamingLLM

AnyPolicy = Policy | Quest | MiniCache

POLICIES: dict[str, type[AnyPolicy]] = {
    "streaming_llm": StreamingLLM,
    "knorm": Knorm,
    "keydiff": KeyDiff,
    "snapkv": SnapKV,
    "h2o": H2O,
    "pyramidkv": PyramidKV,
    "quest": Quest,
    "minicache": MiniCache,
}


def policy_of(text: str) -> AnyPolicy:
    """The policy of a text such as `snapkv:capacity=1024,window=32`."""
    name, _, given = text.partition(":")
    if name not in POLICIES:
        raise ModelError(f"kv_policy is {name!r}: want {', '.join(POLICIES)}")
    known = [field.name for field in fields(POLICIES[name])]
    numbers: dict[str, int] = {}
    for part in given.split(",") if given else ():
        key, _, value = part.partition("=")
        if key not in known or not value.isdecimal():
            raise ModelError(
                f"kv_policy {name} has {part!r}: want NAME=NUMBER, of {', '.join(known)}"
            )
        numbers[key] = int(value)
    return POLICIES[name](**numbers)


def text_of(policy: AnyPolicy) -> str:
    """The text that `policy_of` makes the same policy of; ModelError where there is none."""
    name = next((name for name, kind in POLICIES.items() if type(policy) is kind), "")
    if not name:
        raise ModelError(
            f"kv_policy {type(policy).__name__} is none of {', '.join(POLICIES)}: there is no text"
            " that says what it keeps"
        )
    numbers = {f.name: getattr(policy, f.name) for f in fields(policy)}
    told = (f"{key}={value}" for key, value in numbers.items() if key != "beta" or value)
    return f"{name}:{','.join(told)}"
