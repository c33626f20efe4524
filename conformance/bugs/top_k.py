"""Planted bugs of top_k."""

from conformance.bugs.bug import in_cuda, in_python
from reference.op import Array
from reference.samplers.top_k import top_k


def last_of_ties(logits: Array, k: int) -> Array:
    return top_k(logits[::-1], k)[::-1]


def one_more(logits: Array, k: int) -> Array:
    return top_k(logits, k + 1)


def at_most_4096(logits: Array, k: int) -> Array:
    return top_k(logits, min(k, 4096))


def of_the_first_65536(logits: Array, k: int) -> Array:
    out = logits.copy()
    out[:65536] = top_k(logits[:65536], k)
    return out


IN_CUDA = (
    *in_cuda("top_k", "top_k.cu", (
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
    *in_cuda("top_k", "ordered.cuh", (
        ("all-of-equals", "32 | ~static_cast<uint32_t>(id)", "32"),
        ("last-of-equals", "32 | ~static_cast<uint32_t>(id)", "32 | static_cast<uint32_t>(id)"),
    )),
)  # fmt: skip

BUGS = (
    *in_python("top_k", last_of_ties, one_more, at_most_4096, of_the_first_65536),
    *IN_CUDA,
)
