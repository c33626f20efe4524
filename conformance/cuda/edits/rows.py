"""Of norms, softmax, and the reductions that they share."""

from conformance.cuda.edits.edit import of

EDITS = (
    *of("rms_norm", "rms_norm.cu", (
        ("one-four-short", "i < hidden; i +=", "i + 4 < hidden; i +="),
        ("stride-of-a-warp", "i += 4 * blockDim.x", "i += 4 * WARP"),
        ("rows-too-near", "blockIdx.x) * hidden", "blockIdx.x) * (hidden - 1)"),
    )),
    *of("rms_norm", "rms_norm.cuh", (
        ("no-eps", " + static_cast<float>(eps)", ""),
        ("mean-over-one-less", "squares / hidden", "squares / (hidden - 1)"),
        ("no-root", "rsqrtf(squares / hidden", "1.f / (squares / hidden"),
        ("sum-without-tail", "i < hidden; i += 4 * blockDim.x)",
         "i < hidden / 4 * 4; i += 4 * blockDim.x)"),
        ("same-weight", "load_of_row(weight, first, hidden)", "load_of_row(weight, 0, hidden)"),
        ("no-sum-of-the-block", "squares = block_reduce(squares, partial, Sum());", ""),
        ("reads-beyond-the-row", "first + k < width ? row[first + k] : 0.f", "row[first + k]"),
        ("fours-of-any-row", "if (width % 4 == 0) return load_four", "return load_four"),
        ("stores-fours-of-any-row", "if (width % 4 == 0) return store_four", "return store_four"),
        ("stores-one-more", "    if (first + k < width) row", "    if (first + k <= width) row"),
    )),
    *of("rms_norm", "portable.cuh", (
        ("no-barrier-before-partial-sums", "  __syncthreads();\n  x = partial[0];",
         "  x = partial[0];"),
        ("a-warp-too-few", "i < warps;", "i < warps - 1;"),
        ("a-warp-too-many", "i < warps;", "i <= warps;"),
        ("half-a-warp", "m /= 2) x = combine(x, __shfl", "m /= 4) x = combine(x, __shfl"),
        ("mask-of-half-a-warp", "x = combine(x, __shfl_xor_sync(ALL,",
         "x = combine(x, __shfl_xor_sync(0xffffu,"),
        ("first-warp-only", "if (threadIdx.x % WARP == 0) partial",
         "if (threadIdx.x == 0) partial"),
        ("every-lane-stores", "if (threadIdx.x % WARP == 0) partial[", "partial["),
    )),
    *of("layer_norm", "portable.cuh", (
        ("no-barrier-after-partial-sums", "  __syncthreads();\n  return x;", "  return x;"),
    )),
    *of("layer_norm", "layer_norm.cu", (
        ("mean-taken-once", "pass < 2", "pass < 1"),
        ("second-mean-alone", "mean += block", "mean = block"),
        ("squares-of-what-is-far", "const float centred = x[row + i] - mean;",
         "const float centred = x[row + i];"),
        ("eps-outside", "sqrtf(variance + static_cast<float>(eps))",
         "(sqrtf(variance) + static_cast<float>(eps))"),
        ("no-bias", " + bias[i]", ""),
        ("bias-scaled", "(x[row + i] - mean) * scale * weight[i] + bias[i]",
         "((x[row + i] - mean) * scale + bias[i]) * weight[i]"),
        ("out-not-centred", "(x[row + i] - mean) * scale", "x[row + i] * scale"),
    )),
    *of("softmax", "softmax.cu", (
        ("largest-of-the-thread", "  top = block_reduce(top, partial, Max());\n", ""),
        ("sum-of-the-thread", "  sum = block_reduce(sum, partial, Sum());\n", ""),
        ("largest-without-the-last", "i < width; i += blockDim.x) top",
         "i < width - 1; i += blockDim.x) top"),
        ("no-largest", "expf(x[row + i] - top)", "expf(x[row + i])"),
        ("base-two", "expf(", "exp2f("),
        ("not-normed", "out[row + i] /= sum", "out[row + i] /= 1.f"),
        ("sum-of-the-largest", "partial, Sum()", "partial, Max()"),
        ("largest-of-the-sum", "partial, Max()", "partial, Sum()"),
        ("row-of-tokens", "blockIdx.x) * width", "blockIdx.x) * tokens"),
    )),
)  # fmt: skip
