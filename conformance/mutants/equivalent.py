"""Mutants that compute the same, or what no kernel of this machine reaches, with the reason."""

from conformance.mutants.mutate import Mutant
from kernels.provenance import cpu_features

EARLY = "what is asked for before it is wanted changes no result"
TWICE = "every sixteenth element is done twice, with the same result"
UNSEEN = "where a slice ends is asked by nobody"

# (file under kernels/cpu, the line of source, what was changed, "" for any change; the axis beyond
# whose sizes in cases it holds, "" for any mutant)
EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    ("amx.py", "return bool(ctypes.CDLL(None).syscall(*words) == 0)", "", ""): (
        "permission is asked for all the same: what is chosen is wrong, nothing that is computed"
    ),
    ("amx.py", "if not (1 <= rows <= 16 and 1 <= row_bytes <= 64):", "", ""): (
        "a check of what no kernel asks for"
    ),
    ("activations.py", "for i in range(first, last, 16):", "16 -> 15", ""): TWICE,
    ("gated_activations.py", "for i in range(first, last, 16):", "16 -> 15", ""): TWICE,
    (
        "attention.py",
        'return min(shape["tokens"], FEW) * shape["heads"] * chunks * (shape["head_dim"] + 2)',
        "2 -> 3",
        "",
    ): "more scratch than is used",
    ("attention.py", "most = max(most, spans[t, 2] - spans[t, 1])", "", "tokens"): (
        "of so many tokens cells are not dealt out, and nothing is counted"
    ),
    ("encoding.py", "low, high = x[0], x[0]", "0 -> 1", ""): (
        "the range of all elements may begin with any"
    ),
    ("fitted.py", "halves[b * half_bytes : (b + 1) * half_bytes],", "1 -> 2", ""): UNSEEN,
    ("fitted.py", "own[b * parts : (b + 1) * parts],", "b + 1 -> b - 1", ""): UNSEEN,
    (
        "layer_norm.py",
        "squares += (float(x[t, i]) - mean) * (float(x[t, i]) - mean)",
        "float(x[t, i]) - mean -> float(x[t, i]) + mean",
        "",
    ): "the sum of x^2 - mean^2 is that of (x - mean)^2",
    (
        "linear_amx.py",
        "DEEPEST = 64  # blocks of lowered weights: 32 KiB, in the first level",
        "",
        "",
    ): "where a panel ends changes no order of sums",
    ("linear_amx.py", "extras = scales * layout.parts if layout.m else 1", "1 -> 0", ""): (
        "memory that is not used"
    ),
    (
        "linear_amx.py",
        "sums = load_first(f32x16, out, (token + t) * width + row, width - row)",
        "width - row -> width + row",
        "",
    ): "sums that are read too many are not kept",
    ("linear_blocks.py", "return whole if parts == 1 else added", "1 -> 0", ""): (
        "the sum over the one part is the block's"
    ),
    (
        "linear_blocks.py",
        "words, extras = 8 * meeting.words * size, layout.parts * size",
        "8 -> 9",
        "",
    ): "more of the stack than is used",
    (
        "linear_int8.py",
        "GENERIC = Multiplying(8, 2, lay_halves, NARROW, by_pairs, by_pairs, tables=False)",
        "8 -> 9",
        "",
    ): "of nine rows at once the last are multiplied and not kept",
    ("linear_lut.py", "BLOCKING = Blocking((4, 2, 1), 8, 64, asks=(1, 8192, 2))", "", ""): (
        "how tokens are put together, and what is asked for early, changes no sum"
    ),
    (
        "log_probabilities.py",
        "if i + 16 <= codes.size:",
        "i + 16 <= codes.size -> i + 16 < codes.size",
        "",
    ): "one by one sixteen are the same",
    ("neuron_masks.py", "found, whole = 0, neurons // 64 * 64", "64 -> 65", ""): (
        "what is not counted by words is counted one by one"
    ),
    ("rows.py", "row, byte = min(asked // row_bytes, LANES - 1), asked % row_bytes", "", ""): EARLY,
    (
        "samplers/prefix.py",
        "keep_by_logit(logits, np.float32(0), 0.0, np.float64(k), out)",
        "0 -> -1",
        "",
    ): "by logits alone, no centre is looked at",
    (
        "sparse_axpy.py",
        "first_byte, last = begin // elements * size, end // elements * size",
        "",
        "",
    ): EARLY,
    ("samplers/prefix.py", "return 2**32 if max_lanes(lanes) > GONE else 0", "0 -> -1", ""): (
        "either is below the key of what is left"
    ),
    ("schemes/linear_w8a8.py", "LARGEST = (2**31 - 1) // 255**2", "1 -> 2", ""): (
        "the quotient is the same"
    ),
    (
        "simd_x86.py",
        "values = ir.Constant(index.type, [*table] * (index.type.count // 16))",
        "16 -> 15",
        "",
    ): "16, 32 and 64 have as many fifteens as sixteens",
    (
        "sparse_linear.py",
        "begin, end = part((active + LANES - 1) // LANES, thread, n_threads)",
        "active + LANES - 1 -> active + LANES + 1",
        "",
    ): "a group of no neurons more, which clears what the last one would",
    (
        "sparse_linear.py",
        "begin_rows(where, min(group + 1, end - 1), active, following)",
        "1 -> 2",
        "",
    ): EARLY,
}

# Functions that no kernel of a machine with a feature is made of: file, lines that hold a word.
UNREACHED = {
    ("amx_emulated.py", ""): ("amx-tile", "this CPU multiplies tiles itself"),
    ("simd.py", "0x7FFF"): ("f16c", "this CPU widens halves itself"),
}


def reason_of(mutant: Mutant) -> str:
    """Why no trial can notice it; "" of one that a trial should notice."""
    file = mutant.file.removeprefix("kernels/cpu/")
    for (unreached, word), (feature, why) in UNREACHED.items():
        if file == unreached and word in mutant.text and feature in cpu_features():
            return why
    whats, axes = (mutant.what, ""), (mutant.axis, "")
    places = ((file, mutant.text, what, axis) for what in whats for axis in axes)
    return next((EQUIVALENT[place] for place in places if place in EQUIVALENT), "")
