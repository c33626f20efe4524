"""Planted bugs of greedy."""

from conformance.bugs.bug import in_c, in_cuda

IN_CUDA = (
    *in_cuda("greedy", "choice.cu", (
        ("least", "return a < b ? b : a", "return a < b ? a : b"),
        ("first-part", "int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocab",
         "int i = threadIdx.x; i < vocab"),
        ("one-too-many", "i < vocab; i += gridDim", "i <= vocab; i += gridDim"),
        ("without-the-last", "i < vocab; i += gridDim", "i < vocab - 1; i += gridDim"),
        ("best-of-a-thread", "  best = block_reduce(best, partial, Larger());\n", ""),
        ("every-thread-stores", "if (threadIdx.x == 0) scratch[blockIdx.x] = best",
         "scratch[blockIdx.x] = best"),
        ("half-of-the-parts", "m /= 2) best = Larger()", "m /= 4) best = Larger()"),
    )),
    *in_cuda("greedy", "ordered.cuh", (
        ("last-of-equals", "32 | ~static_cast<uint32_t>(id)",
         "32 | static_cast<uint32_t>(-1 - ~id)"),
        ("negatives-upside-down", "bits >> 31 ? ~bits : bits | 0x80000000u", "bits ^ 0x80000000u"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("greedy",
        ("vocabulary-above-65536", "i < vocab", "i < (vocab < 65536 ? vocab : 65536)"),
        ("token-of-sixteen-bits", "(int32_t)best;", "(uint16_t)best;"),
        ("token-of-17-bits", "(int32_t)best;", "(int32_t)(best & 131071);"),
        ("last-of-equals-far-out", "b->logits[i] > b->logits[best]",
         "b->logits[i] > b->logits[best] || (i > 4099 && b->logits[i] == b->logits[best])"),
        ("last-left-out", "i < vocab", "i < vocab - (vocab > 4100)"),
    ),
)  # fmt: skip


BUGS = (*IN_CUDA, *IN_C)
