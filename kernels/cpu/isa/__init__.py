"""Vectors, tiles, atomics and system calls inside compiled code."""
