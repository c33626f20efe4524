"""Of activations, arithmetic and rope."""

from conformance.cuda.edits.edit import of

EDITS = (
    *of("silu", "activations.cuh", (
        ("other-sign", "x / (1.f + expf(-x))", "x / (1.f + expf(x))"),
        ("no-x", "return x / (1.f + expf(-x))", "return 1.f / (1.f + expf(-x))"),
    )),
    *of("silu", "activations.cu", (("gelu", "ACTIVATION(silu, Silu)", "ACTIVATION(silu, Gelu)"),)),
    *of("gelu", "activations.cuh", (
        ("cubic-of-ten", "0.044715f", "0.44715f"),
        ("square", "0.044715f * x, x, 1.f", "0.044715f, x, 1.f"),
        ("half-the-argument", "-1.5957691216057308f", "-0.7978845608028654f"),
    )),
    *of("gelu_erf", "activations.cuh", (
        ("not-halved", "0.5f * erfcf", "erfcf"),
        ("no-root-of-two", "size * 0.70710678118654752f", "size"),
        ("of-x", "erfcf(size *", "erfcf(x *"),
    )),
    *of("relu", "activations.cuh", (("leaky", "0.f : x", "0.01f * x : x"),)),
    *of("squared_relu", "activations.cuh", (("signed", "Relu()(x);", "x;"),)),
    *of("swiglu", "gated_activations.cu", (
        ("exchanged", "map(gate, up, out", "map(up, gate, out"),
    )),
    *of("swiglu", "gated_activations.cuh", (
        ("of-up", "Activation()(gate) * up", "Activation()(up) * gate"),
        ("gelu", "GATED(swiglu, Gated<Silu>)", "GATED(swiglu, Gated<Gelu>)"),
    )),
    *of("drelu", "gated_activations.cuh", (("up-as-it-is", "* Relu()(up)", "* up"),)),
    *of("add", "elementwise.cuh", (
        ("four-where-three-are", "  if (first + 4 <= end) {\n    const",
         "  if (first + 3 <= end) {\n    const"),
        ("stores-one-more", "if (first + k < end) out", "if (first + k <= end) out"),
        ("stores-one-less", "if (first + k < end) out", "if (first + k + 1 < end) out"),
        ("stores-four-always", "  if (first + 4 <= end) {\n    *", "  {\n    *"),
        ("reads-one-less", "first + k < end ? x", "first + k + 1 < end ? x"),
        ("threes", "return 4 * (", "return 3 * ("),
        ("every-block-the-first", "static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x);",
         "threadIdx.x);"),
        ("exchanged", "{four.at[0], four.at[1], ", "{four.at[1], four.at[0], "),
        ("x-with-itself", "other = load_four(y,", "other = load_four(x,"),
    )),
    *of("add_bias", "arithmetic.cu", (
        ("one-too-many", "i >= width", "i > width"),
        ("bias-of-the-token", "bias[i]", "bias[blockIdx.x]"),
        ("row-of-tokens", "blockIdx.x) * width + i", "blockIdx.x) * tokens + i"),
        ("first-block-of-a-row", "blockIdx.y * blockDim.x + threadIdx.x", "threadIdx.x"),
    )),
    *of("scale", "arithmetic.cu", (("twice", "x * factor", "x * factor * factor"),)),
    *of("add_squares", "add_squares.cu", (
        ("no-before", "double sum = before[i]", "double sum = 0."),
        ("without-the-first", "int t = 0", "int t = 1"),
        ("in-float", "double sum", "float sum"),
        ("not-squared", "value * value", "value"),
        ("of-the-token", "t) * hidden + i", "t) * hidden"),
        ("one-too-many", "i >= hidden", "i > hidden"),
    )),
    *of("rotation", "rope.cu", (
        ("angle-in-float", "sincos(positions[blockIdx.x] * frequencies[i],",
         "sincos(positions[blockIdx.x] * static_cast<float>(frequencies[i]),"),
        ("exchanged", "&sine, &cosine", "&cosine, &sine"),
        ("no-magnitude", "magnitude * sine", "sine"),
        ("next-position", "positions[blockIdx.x]", "(positions[blockIdx.x] + 1)"),
        ("one-too-many", "i >= pairs) return", "i > pairs) return"),
    )),
    *of("rope_norm", "rope.cuh", (
        ("backwards", "__fsub_rn(__fmul_rn(a, cosine)", "__fadd_rn(__fmul_rn(a, cosine)"),
        ("second-of-the-first", "__fadd_rn(__fmul_rn(a, sine)", "__fadd_rn(__fmul_rn(b, sine)"),
    )),
    *of("rope_norm", "rope.cu", (
        ("as-neox", "pairs, 2, 1)", "pairs, 1, pairs)"),
        ("rest-forgotten", "    out[head + 2 * i] = x[head + 2 * i];\n", ""),
        ("rest-turned", "if (i >= pairs) {", "if (i > pairs) {"),
        ("rotation-of-the-head", "blockIdx.x) * pairs + i;\n  const float",
         "k / halves) * pairs + i;\n  const float"),
        ("one-head-short", "k >= heads * halves", "k >= (heads - 1) * halves"),
        ("head-of-no-token", "blockIdx.x) * heads + k", "blockIdx.x) * 0 + k"),
    )),
    *of("rope_neox", "rope.cu", (
        ("as-norm", "pairs, 1, pairs)", "pairs, 2, 1)"),
        ("halves-of-the-head", "pairs, 1, pairs)", "pairs, 1, head_dim / 2)"),
    )),
)  # fmt: skip
