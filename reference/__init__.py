"""The reference: every op as its formula in NumPy and float64, slow and readable."""

from reference.stamps import stamps_beside

STAMPS = stamps_beside(__file__)
