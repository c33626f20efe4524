"""Of greedy, log_sum_exp and top_k."""

from conformance.cuda.edits.edit import of

EDITS = (
    *of("greedy", "choice.cu", (
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
    *of("greedy", "ordered.cuh", (
        ("last-of-equals", "32 | ~static_cast<uint32_t>(id)",
         "32 | static_cast<uint32_t>(-1 - ~id)"),
        ("negatives-upside-down", "bits >> 31 ? ~bits : bits | 0x80000000u", "bits ^ 0x80000000u"),
    )),
    *of("log_sum_exp", "choice.cu", (
        ("no-largest", "top + log(sum)", "log(sum)"),
        ("parts-as-they-are", " * exp(own - top)", ""),
        ("largest-of-a-thread", "  top = block_reduce(top, tops, Max());\n", ""),
        ("sum-of-a-thread", "  sum = block_reduce(sum, sums, Sum());\n", ""),
        ("one-too-many", "for (int i = first; i < vocab; i += step)\n",
         "for (int i = first; i <= vocab; i += step)\n"),
        ("base-two", "sum += expf(", "sum += exp2f("),
        ("own-largest", "top = fmax(top, __shfl_xor_sync(ALL, top, m));", "break;"),
    )),
    *of("top_k", "top_k.cu", (
        ("one-more", "k < vocab ? k : vocab", "k < vocab ? k + 1 : vocab"),
        ("edge-left-out", ">= edge", "> edge"),
        ("edge-before-its-bin", "above < wanted && wanted <= upto",
         "above < wanted && wanted < upto"),
        ("any-beginning", "i < vocab && (key ^ edge) >> shift < BINS", "i < vocab"),
        ("counted-by-every-lane", "if (counts && __ffs(alike) - 1 == lane)", "if (counts)"),
        ("counted-once", "__popc(alike))", "1)"),
        ("not-from-the-top", "__shfl_up_sync", "__shfl_down_sync"),
        ("stops-early", "if (inside == wanted) break", "if (inside >= wanted) break"),
        ("bins-as-they-were", "bins[b] = 0;", "bins[b] += 0;"),
        ("no-barrier-after-zeros", "bins[b] = 0;\n    __syncthreads();", "bins[b] = 0;"),
        ("no-barrier-after-counting", "    __syncthreads();\n    if (threadIdx.x < WARP) {",
         "    if (threadIdx.x < WARP) {"),
        ("no-barrier-after-choosing", "    __syncthreads();\n    edge = chosen;",
         "    edge = chosen;"),
        ("one-too-many", "for (int i = threadIdx.x; i < vocab",
         "for (int i = threadIdx.x; i <= vocab"),
        ("chosen-by-all", "if (threadIdx.x < WARP) {", "{"),
    )),
    *of("top_k", "ordered.cuh", (
        ("all-of-equals", "32 | ~static_cast<uint32_t>(id)", "32"),
        ("last-of-equals", "32 | ~static_cast<uint32_t>(id)", "32 | static_cast<uint32_t>(id)"),
    )),
)  # fmt: skip
