"""Sparse linear layers over active neurons (PowerInfer, arXiv 2312.12456), and their masks."""
