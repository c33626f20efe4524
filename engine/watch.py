"""Who watches long work is told how far it is; `kernels.certify.Certified` is for trials."""

from collections.abc import Callable

Watch = Callable[[int, int], None]  # of bytes done and the total
