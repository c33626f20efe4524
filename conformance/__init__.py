"""Tests of kernels and of the engine."""
