"""Planted bugs of fused."""

from conformance.bugs.bug import in_cuda

IN_CUDA = (
    *in_cuda("add_norm", "add_norm.cu", (
        ("sum-not-kept", "    store_of_row(sum, i, hidden, four);\n", ""),
        ("x-twice", "load_of_row(y, i, hidden)", "load_of_row(x, i, hidden)"),
        ("norm-of-x", "normalised(sum + row, weight, i, hidden, factor, held)",
         "normalised(x + row, weight, i, hidden, factor, held)"),
    )),
    *in_cuda("add_norm_round", "add_norm.cu", (
        ("later-passes-of-the-first-token", "normalised(x + row, weight,", "normalised(x, weight,"),
        ("first-pass-alone", "begin += blockDim.x", "begin = hidden"),
        ("norm-not-kept", "      store_of_row(normed + row, i, hidden, four);\n", ""),
        ("codes-of-the-first-token", "round_four(four, row + i,", "round_four(four, i,"),
        ("lanes-left-behind", "4 * begin < hidden", "4 * (begin + lane) < hidden"),
        ("beyond-the-row", "const bool inside = i < hidden", "const bool inside = true"),
    )),
    *in_cuda("norm_round", "add_norm.cu", (
        ("scale-of-the-first-token", "{ return load_of_row(x + row, i, hidden); }",
         "{ return load_of_row(x, i, hidden); }"),
    )),
    *in_cuda("swiglu_round", "gated_round.cu", (
        ("up-twice", "load_four(gate, first, end)", "load_four(up, first, end)"),
        ("not-kept", "    store_four(out, first, end, four);\n", ""),
        ("beyond-the-end", "const bool inside = first < end", "const bool inside = true"),
    )),
    *in_cuda("linear_trio", "linear.cuh", (
        ("blocks-of-the-first-alone", "    block -= blocks;\n", ""),
        ("rows-too-few", "(own.count + BLOCK_ROWS<ROWS> - 1) /", "own.count /"),
        ("first-weight-for-all", "    own = weights[i];\n", ""),
        ("one-early", "if (block < blocks) break", "if (block <= blocks) break"),
        ("first-block-alone", "own.first = block * BLOCK_ROWS<ROWS>", "own.first = 0"),
    ), "Q4_0"),
    *in_cuda("linear_trio", "linear_blocks_joined.cu", (
        ("rows-of-the-second", "{weight_2, out_2, rows_2}", "{weight_2, out_2, rows_1}"),
        ("second-weight-again", "weight_2, out_2, rows_2", "weight_1, out_2, rows_2"),
    ), "Q4_K"),
    *in_cuda("linear_pair", "linear_float_joined.cu", (
        ("two-tokens-for-four", "FEW_JOINED(4, false, 4, 4)", "FEW_JOINED(4, false, 2, 4)"),
    ), "F16"),
    *in_cuda("linear_pair", "linear_float.cuh", (
        ("second-into-the-first",
         "own_rows<ROWS>({{weight, out, rows}, {weight_1, out_1, rows_1}})",
         "own_rows<ROWS>({{weight, out, rows}, {weight_1, out, rows_1}})"),
    ), "F16"),
    *in_cuda("linear_pair", "linear_bf16_joined.cu", (
        ("not-rounded", "FEW_JOINED(1, true", "FEW_JOINED(1, false"),
    ), "F16", "bf16"),
    *in_cuda("rope_norm_write", "rope_write.cu", (
        ("keys-from-queries", "turned(k + token * width", "turned(q + token * width"),
        ("keys-not-kept", "    k_out[token * width + i] = own;\n", ""),
        ("unturned", "write_to_cell(own, k_cache", "write_to_cell(k[token * width + i], k_cache"),
        ("values-as-keys", "v_cache, cell, width", "k_cache, cell, width"),
        ("rotation-of-the-first-token", "  rotation += token * 2 * pairs;\n", ""),
        ("rest-turned", "within >= 2 * pairs", "within > 2 * pairs"),
        ("keys-begin-early", "(block - of_q) * THREADS", "block * THREADS"),
        ("values-begin-early", "(block - of_q - of_k) * THREADS", "(block - of_q) * THREADS"),
        ("as-neox", "ROPE_WRITE(rope_norm_write, 2, 1)", "ROPE_WRITE(rope_norm_write, 1, pairs)"),
    ), "F16"),
    *in_cuda("rope_neox_write", "rope_write.cu", (
        ("partner-of-the-first", "second ? i - beside : i)", "i)"),
        ("pair-of-the-second", "second ? within - pairs : within;", "within;"),
        ("first-for-both", "return second ? turned_second", "return false ? turned_second"),
    ), "Q8_0"),
    *in_cuda("attention_round", "attention_merge_round.cu", (
        ("not-kept", "    out[at] = x;\n", ""),
        ("totals-for-steps", "round_one(x, at, codes, steps, total);",
         "round_one(x, at, codes, steps + 1, total);"),
    ), "F16"),
    *in_cuda("attention_round", "quantise_activations.cuh", (
        ("largest-of-half-a-warp", "m = WARP / 2; m; m /= 2) bits",
         "m = WARP / 4; m; m /= 2) bits"),
        ("every-lane-stores-the-step", "if (at % WARP == 0) {", "{"),
    ), "F16"),
)  # fmt: skip

BUGS = (*IN_CUDA,)
