"""Planted bugs of draw."""

from conformance.bugs.bug import in_c, in_python
from reference.op import Array
from reference.samplers.draw import draw


def one_late(logits: Array, u: float) -> Array:
    return (draw(logits, u) + 1) % len(logits)


IN_C = (
    *in_c("draw",
        ("running-sum-in-float", "double most = -INFINITY, whole = 0, running = 0;",
         "double most = -INFINITY, whole = 0;\n    float running = 0;"),
        ("whole-sum-in-float", "double most = -INFINITY, whole = 0, running = 0;",
         "double most = -INFINITY, running = 0;\n    float whole = 0;"),
        ("token-of-sixteen-bits", "(int32_t)token;", "(uint16_t)token;"),
        ("vocabulary-of-32000", "(int32_t)token;",
         "(int32_t)(vocab > 32000 ? token % 32000 : token);"),
        ("u-of-at-most-0.999", "running > b->u * whole", "running > fmin(b->u, 0.999) * whole"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python("draw", one_late),
)
