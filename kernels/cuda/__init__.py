"""Kernels for NVIDIA GPUs: CUDA sources, and modules that describe their launches.

- `runtime`: compiling, loading and launching, and the device
- `formats`: weight formats inside compiled code, and how weights are packed
- `linear`, `attention`, `sparse`, `recurrent`, `samplers`: ops, as in kernels/cpu
- `fusion`: fused kernels
- `single`: ops of one launch; `table`: every kernel

Sources include one another by their names alone (runtime/launch.py), whatever folder they are in.
"""
