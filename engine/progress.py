"""The type of progress callbacks; trials have `kernels.certify.Certified`."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]  # done, total: bytes, cases or steps
