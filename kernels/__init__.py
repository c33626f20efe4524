"""The fast kernels by target, the judge that tries them, and their certificates."""

from reference.stamps import stamps_beside

STAMPS = stamps_beside(__file__)
