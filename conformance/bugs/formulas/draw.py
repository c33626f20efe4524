"""Planted bugs of draw."""

from conformance.bugs.bug import in_python
from reference.samplers.draw import draw

BUGS = in_python("draw", one_late=lambda logits, u: (draw(logits, u) + 1) % len(logits))
