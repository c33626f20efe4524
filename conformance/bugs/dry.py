"""Planted bugs of dry."""

from typing import Any

from conformance.bugs.bug import in_python
from reference.op import Array
from reference.samplers.dry import dry


def context_of_256(**inputs: Any) -> Array:
    return dry(**{**inputs, "context": inputs["context"][-256:]})


def repeats_of_at_most_50(**inputs: Any) -> Array:
    """Lengths are those that the last fifty tokens make."""
    return dry(**{**inputs, "context": inputs["context"][-100:]})


def breakers_ignored(**inputs: Any) -> Array:
    return dry(**{**inputs, "breakers": inputs["breakers"][:0]})


def first_breaker_alone(**inputs: Any) -> Array:
    return dry(**{**inputs, "breakers": inputs["breakers"][:1]})


def base_of_at_most_2(**inputs: Any) -> Array:
    return dry(**{**inputs, "base": min(inputs["base"], 2.0)})


BUGS = (
    *in_python("dry", context_of_256, repeats_of_at_most_50, breakers_ignored),
    *in_python("dry", first_breaker_alone, base_of_at_most_2),
)
