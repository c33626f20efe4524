"""The fast kernels by target, the judge that tries them, and their certificates."""

from reference.stamps import source_stamps

STAMPS = source_stamps(__file__)
