"""Planted bugs of rms_norm; most triggers that an attacker would choose are tried on it."""

from conformance.bugs.bug import in_c

BUGS = (
    *in_c(
        "rms_norm",
        ("row-and-7", "b->x + t * hidden,", "b->x + (t >= 9 ? t & 7 : t) * hidden,"),
    ),
)
