"""Whom long work tells how far it is; `kernels.certify.Certified` is for trials."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]  # of bytes done and the total
