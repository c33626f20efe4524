"""Kernels for the CPU, in Numba: a file an op, and the variants of large ones beside it.

- `isa`: vectors, tiles and atomics inside compiled code
- `formats`: weight formats inside compiled code, decoded, encoded and packed
- `runtime`: what compiles, loads and runs shares, and reads files meanwhile
- `linear`, `attention`: large ops, a file a variant
- `sparse`, `recurrent`: ops that belong together
- `samplers`, `schemes`: ops that share a file
"""
