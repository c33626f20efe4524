"""Planted bugs of dry."""

from conformance.bugs.bug import in_python
from reference.samplers.dry import dry

BUGS = (
    *in_python(
        "dry",
        context_of_256=lambda **inputs: dry(**{**inputs, "context": inputs["context"][-256:]}),
        # Lengths are those that the last fifty tokens make.
        repeats_of_at_most_50=lambda **inputs: dry(
            **{**inputs, "context": inputs["context"][-100:]}
        ),
        breakers_ignored=lambda **inputs: dry(**{**inputs, "breakers": inputs["breakers"][:0]}),
    ),
    *in_python(
        "dry",
        first_breaker_alone=lambda **inputs: dry(**{**inputs, "breakers": inputs["breakers"][:1]}),
        base_of_at_most_2=lambda **inputs: dry(**{**inputs, "base": min(inputs["base"], 2.0)}),
    ),
)
