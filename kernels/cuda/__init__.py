"""Kernels for NVIDIA GPUs: sources, and modules that say how their functions are launched.

- `runtime`: what compiles, loads and launches them, and the device
- `formats`: weight formats inside compiled code, and how weights are packed
- `linear`, `attention`, `sparse`, `recurrent`, `samplers`: ops, as in kernels/cpu
- `fusion`: kernels that do what several in a row do
- `single`: ops of one launch; `table`: every kernel

Sources include one another by their names alone (runtime/launch.py), whatever folder they are in.
"""
