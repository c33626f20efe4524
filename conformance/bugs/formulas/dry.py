"""Planted bugs of dry."""

from conformance.bugs.bug import changed, in_python
from reference.samplers.dry import dry

BUGS = in_python(
    "dry",
    context_of_256=changed(dry, context=lambda context: context[-256:]),
    # Lengths are those that the last fifty tokens make.
    repeats_of_at_most_50=changed(dry, context=lambda context: context[-100:]),
    breakers_ignored=changed(dry, breakers=lambda breakers: breakers[:0]),
    first_breaker_alone=changed(dry, breakers=lambda breakers: breakers[:1]),
    base_of_at_most_2=changed(dry, base=lambda base: min(base, 2.0)),
)
