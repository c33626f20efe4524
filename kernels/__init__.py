"""The ops, fast: kernels by target, the judge that tries them, and their certificates."""

from reference.stamps import stamps_of

STAMPS = stamps_of(__path__)
