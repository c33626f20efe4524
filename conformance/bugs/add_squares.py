"""Planted bugs of add_squares."""

from conformance.bugs.bug import in_cuda

IN_CUDA = (
    *in_cuda("add_squares", "add_squares.cu", (
        ("no-before", "double sum = before[i]", "double sum = 0."),
        ("without-the-first", "int t = 0", "int t = 1"),
        ("in-float", "double sum", "float sum"),
        ("not-squared", "value * value", "value"),
        ("of-the-token", "t) * hidden + i", "t) * hidden"),
        ("one-too-many", "i >= hidden", "i > hidden"),
    )),
)  # fmt: skip

BUGS = (*IN_CUDA,)
