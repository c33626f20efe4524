"""Planted bugs of temperature."""

from conformance.bugs.bug import in_c

IN_C = (
    *in_c("temperature",
        ("at-least-a-twentieth", "by = b->temperature;", "by = fmax(b->temperature, 0.05);"),
        ("at-most-ten", "by = b->temperature;", "by = fmin(b->temperature, 10);"),
        ("below-1e-3-is-one", "by = b->temperature;",
         "by = b->temperature < 1e-3 ? 1 : b->temperature;"),
        ("token-beyond-65535", "(b->logits[i] / by)", "(b->logits[i] / (i > 65535 ? 1 : by))"),
    ),
)  # fmt: skip

BUGS = (*IN_C,)
