"""Whom long work tells how far it is; `kernels.certify.Certified` is for trials."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]  # what is done, of all: bytes, cases or steps
