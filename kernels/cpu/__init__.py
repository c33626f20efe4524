"""Kernels for the CPU, in Numba: one file per op, and the variants of large ops beside it.

- `isa`: vectors, tiles and atomics inside compiled code
- `formats`: weight formats inside compiled code, decoded, encoded and packed
- `runtime`: compiles, loads and runs shares, and reads files concurrently
- `linear`, `attention`: large ops, one file per variant
- `sparse`, `recurrent`: families of ops
- `samplers`, `schemes`: ops that share a file
"""
