"""Planted bugs of log_sum_exp."""

from conformance.bugs.bug import in_cuda

IN_CUDA = (
    *in_cuda("log_sum_exp", "choice.cu", (
        ("no-largest", "top + log(sum)", "log(sum)"),
        ("parts-as-they-are", " * exp(own - top)", ""),
        ("largest-of-a-thread", "  top = block_reduce(top, tops, Max());\n", ""),
        ("sum-of-a-thread", "  sum = block_reduce(sum, sums, Sum());\n", ""),
        ("one-too-many", "for (int i = first; i < vocab; i += step)\n",
         "for (int i = first; i <= vocab; i += step)\n"),
        ("base-two", "sum += expf(", "sum += exp2f("),
        ("own-largest", "top = fmax(top, __shfl_xor_sync(ALL, top, m));", "break;"),
    )),
)  # fmt: skip

BUGS = (*IN_CUDA,)
