"""The reference: every op as its formula in NumPy and float64, slow and readable."""

from reference.stamps import source_stamps

STAMPS = source_stamps(__file__)
