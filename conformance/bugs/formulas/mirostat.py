"""Planted bugs of mirostat."""

import math

from conformance.bugs.bug import in_python
from reference.op import Array
from reference.samplers.mirostat import mirostat_v1, mirostat_v2


def of_at_most_65536(logits: Array, mu: float) -> Array:
    out = mirostat_v1(logits, mu)
    out[65536:] = logits[65536:]
    return out


BUGS = (
    *in_python("mirostat_v2", in_nats=lambda logits, mu: mirostat_v2(logits, mu * math.log(2))),
    *in_python("mirostat_v1", mirostat_v2, of_at_most_65536),
)
