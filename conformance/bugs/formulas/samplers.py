"""Planted bugs of samplers."""

import math

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.op import Array
from reference.samplers.distribution import dropped, most_likely_first
from reference.samplers.draw import draw
from reference.samplers.dry import dry
from reference.samplers.min_p import min_p
from reference.samplers.mirostat import mirostat_v1, mirostat_v2
from reference.samplers.top_k import top_k
from reference.samplers.top_p import top_p
from reference.samplers.typical import typical
from reference.softmax import softmax


def zeros_for_what_is_gone(logits: Array, p: float) -> Array:
    out = min_p(logits, p)
    return np.where(np.isneginf(out), 0, out)


def token_beyond_65535_kept(logits: Array, p: float) -> Array:
    out = min_p(logits, p)
    out[65536:] = logits[65536:]
    return out


def of_at_most_65536(logits: Array, mu: float) -> Array:
    out = mirostat_v1(logits, mu)
    out[65536:] = logits[65536:]
    return out


def divided(
    logits: Array,
    repeated: Array,
    counts: Array,
    repetition: float,
    frequency: float,
    presence: float,
) -> Array:
    """The repetition penalty as first published, which favours negative logits."""
    x = np.where(repeated > 0, logits / repetition, logits)
    return np.where(counts > 0, x - counts * frequency - presence, x)


def of_the_first_65536(logits: Array, k: int) -> Array:
    out = logits.copy()
    out[:65536] = top_k(logits[:65536], k)
    return out


def without_what_reaches_p(logits: Array, p: float) -> Array:
    order = most_likely_first(logits)
    keep = np.zeros(len(logits), bool)
    keep[order] = np.cumsum(softmax(logits)[order]) < p
    keep[order[0]] = True
    return dropped(logits, keep | (p >= 1))


def at_most_4096(logits: Array, p: float) -> Array:
    """Tokens beyond the likeliest 4,096 are not looked at."""
    out = top_p(logits, p)
    out[most_likely_first(logits)[4096:]] = -np.inf
    return out


BUGS = (
    *in_python("draw", one_late=lambda logits, u: (draw(logits, u) + 1) % len(logits)),
    *in_python(
        "dry",
        context_of_256=changed(dry, context=lambda context: context[-256:]),
        # Lengths are those that the last fifty tokens make.
        repeats_of_at_most_50=changed(dry, context=lambda context: context[-100:]),
        breakers_ignored=changed(dry, breakers=lambda breakers: breakers[:0]),
        first_breaker_alone=changed(dry, breakers=lambda breakers: breakers[:1]),
        base_of_at_most_2=changed(dry, base=lambda base: min(base, 2.0)),
    ),
    *in_python(
        "min_p",
        zeros_for_what_is_gone,
        token_beyond_65535_kept,
        p_of_at_least_a_hundredth=changed(min_p, p=lambda p: max(p, 0.01)),
    ),
    *in_python("mirostat_v2", in_nats=lambda logits, mu: mirostat_v2(logits, mu * math.log(2))),
    *in_python("mirostat_v1", mirostat_v2, of_at_most_65536),
    *in_python("penalties", divided),
    *in_python(
        "top_k",
        of_the_first_65536,
        last_of_ties=lambda logits, k: top_k(logits[::-1], k)[::-1],
        one_more=changed(top_k, k=lambda k: k + 1),
        at_most_4096=changed(top_k, k=lambda k: min(k, 4096)),
    ),
    *in_python("top_p", typical, without_what_reaches_p, at_most_4096),
    *in_python("typical", top_p),
    *in_python("xtc", never=lambda **inputs: inputs["logits"]),
)
