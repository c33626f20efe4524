"""The ops, fast: kernels by target, the judge that tries them, and their certificates."""
