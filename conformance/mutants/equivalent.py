"""Mutants that compute the same, or what no kernel of this machine reaches, by the reason."""

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.mutants.mutate import Mutant
from kernels.provenance import cpu_features


@dataclass(frozen=True, slots=True)
class Place:
    """The end of a file's path, how a line of it begins, what was changed there ("" for anything),
    and beyond whose sizes in cases, if not everywhere, that is the same."""

    file: str
    begins: str
    what: str = ""
    axis: str = ""

    def has(self, mutant: Mutant) -> bool:
        """Whether this is a mutant of this place."""
        return (
            mutant.file.endswith(f"/{self.file}")
            and mutant.text.startswith(self.begins)
            and self.what in ("", mutant.what)
            and self.axis in ("", mutant.axis)
        )


EQUIVALENT: dict[str, tuple[Place, ...]] = {
    "what is asked for before it is wanted changes no result": (
        Place("attention_sums.py", "if line_begins(tag, d):", "never: if line_begins(tag, d)"),
        Place("rows.py", "row, byte = min(asked // row_bytes, LANES - 1), asked % row_bytes"),
        Place(
            "sparse_axpy.py", "first_byte, last = begin // elements * size, end // elements * size"
        ),
        Place("sparse_axpy.py", "lines = -(-NEURONS * CHUNK // elements * size // CACHE_LINE)"),
        Place("sparse_axpy.py", "row, byte = 0, first_byte"),
        Place(
            "sparse_axpy.py",
            "at, then = c * size // elements, (c + COLUMNS) * size // elements",
        ),
        Place("sparse_linear.py", "begin_rows(where, min(group + 1, end - 1), active, following)"),
        Place("rows.py", "ASKED = 8"),
        Place("rows.py", "at = k * bytes_each"),
        Place(
            "linear_pairs.py", "following = at + 2 * group_bytes if last else now + depth * step"
        ),
        Place("rows.py", "(0, 128, 256, 512, 1024, 2048),"),
        Place("linear.py", "NEVER = 0, 0, 0"),
        Place("linear.py", 'Knob("ahead_many", DISTANCES, 2048,'),
    ),
    "how many tokens, rows or blocks go together changes no order of sums": (
        Place("attention.py", "FEW = 8", "8 -> 7"),
        Place("attention.py", "slices = (group + QUERIES - 1) // QUERIES", "1 -> 0"),
        Place("linear_float.py", "GENERIC = Blocking("),
        Place("linear_float.py", "AVX512 = Blocking("),
        Place(
            "linear_float.py",
            "done = depth // LANES * LANES",
            "depth // LANES -> LANES // depth",
            "hidden",
        ),
        Place(
            "linear_bf16.py",
            "if size == LANES and k + LANES <= depth:",
            "k + LANES <= depth -> k + LANES < depth",
        ),
        Place("attention_sums.py", "elif rows >= 4:", "4 -> 3"),
        Place(
            "attention_sums.py",
            "step = cells if rows == done and head_dim > 16 else 16",
            "16 -> 17",
        ),
        Place("linear_pairs.py", "TOKENS, DEEPEST = 192, 64", "192 -> 193"),
        Place("softmax.py", "if i + 16 <= width:", "i + 16 <= width -> i + 16 < width"),
        Place("samplers/mass.py", "if i + 16 <= logits.size:", "never: if i + 16 <= logits.size"),
        Place("log_probabilities.py", "if i + 16 <= codes.size:", "16 -> 17"),
        Place("sparse_linear.py", "elif x.shape[0] == 1:"),
        Place("linear_amx.py", "PANEL = 1536"),
        Place("linear_amx.py", "DEEPEST = 192"),
        Place("linear_amx.py", "TILES = 8, 16"),
        Place("linear_amx.py", "TOGETHER = 4"),
        Place(
            "linear_amx.py",
            "most = min(deepest, size // ((count + ROWS - 1) // ROWS)) // whole * whole",
            "1 -> 0",
        ),
        Place("linear_bf16.py", "BLOCKING = Blocking("),
        Place("linear_int8.py", "NARROW, WIDE = Blocking("),
        Place("linear_lut.py", "BLOCKING = Blocking("),
        Place(
            "log_probabilities.py",
            "if i + 16 <= codes.size:",
            "i + 16 <= codes.size -> i + 16 < codes.size",
        ),
        Place("neuron_masks.py", "found, whole = 0, neurons // 64 * 64", "64 -> 65"),
        Place(
            "schemes/linear_float8.py",
            "if tokens == 1 and hidden <= size:",
            "hidden <= size -> hidden < size",
        ),
        Place("sparse_linear.py", "return replace(blocking, tiles="),
        Place(
            "sparse_axpy.py",
            "add_alone = over_columns(alone(decode), format) if alone else add_together",
            "never: if alone",
        ),
        Place("sparse_axpy.py", "if found == NEURONS and some == 1:", "1 -> 0"),
        Place(
            "sparse_axpy.py",
            "if found == NEURONS and some == 1:",
            "never: if found == NEURONS and some == 1",
        ),
    ),
    "every sixteenth element is done twice, or everything, with the same result": (
        Place("schemes/integers.py", "for i in range(0, len(row), 16):", "16 -> 15"),
        Place("schemes/float8.py", "for i in range(0, size, 16):", "16 -> 15"),
        Place(
            "attention.py",
            "for item in range(thread, units * (chunks_of(most) if split else 1)",
            "1 -> 2",
        ),
        Place("isa/sweep.py", "for i in range(first, last, 16):", "16 -> 15"),
        Place("rms_norm.py", "for i in range(0, hidden, 16):", "16 -> 15"),
    ),
    "more memory than is used": (
        Place("formats/layouts.py", '"Q5_K": Layout((4, 1), 0, 8,', "1 -> 2"),
        Place(
            "attention.py",
            'return min(shape["tokens"], FEW) * shape["heads"] * chunks * (shape["head_dim"] + 2)',
            "2 -> 3",
        ),
        Place("attention_sums.py", "WIDEST = 256", "256 -> 257"),
        Place("attention_sums.py", "VALUE = KEY + 16 * WIDEST  # [STAGED, head_dim]", "16 -> 17"),
        Place("linear_amx.py", "extras = met * parts if layout.m else 1", "1 -> 0"),
        Place(
            "linear_blocks.py",
            "words, extras = 8 * meeting.words * size, layout.parts * size",
            "8 -> 9",
        ),
        Place("sparse_linear.py", "words, parts = 8 * meeting.words, layout.parts", "8 -> 9"),
    ),
    "what is computed too much is not kept": (
        Place("linear_bf16.py", "for j in range(min(LANES, depth - k)):", "depth - k -> depth + k"),
        Place("formats/packing.py", "copied, d_of, d, m = coding.scale is None,", "0 -> -1"),
        Place(
            "linear_amx.py",
            "sums = load_first(f32x16, out, (token + t) * width + row, width - row)",
            "width - row -> width + row",
        ),
        Place(
            "linear_bf16.py",
            "for j in range(min(LANES, depth - k)):",
            "min(LANES, depth - k) -> max(LANES, depth - k)",
        ),
        Place(
            "linear_int8.py",
            "GENERIC = Multiplying(8, 2, lay_halves, NARROW, by_pairs, by_pairs, tables=False)",
            "8 -> 9",
        ),
        Place(
            "sparse_linear.py",
            "begin, end = part((active + LANES - 1) // LANES, thread, n_threads)",
            "active + LANES - 1 -> active + LANES + 1",
        ),
    ),
    "where a slice ends, or a tuple, is asked by nobody": (
        Place("amx.py", "pointer = address_of(context, builder, array, values[3:5], I8)", "5 -> 6"),
        Place(
            "tiles.py",
            "rows = _rows(context, builder, out, values[1:4], kind, sums.count)",
            "4 -> 5",
        ),
        Place("fitted.py", "halves[b * half_bytes : (b + 1) * half_bytes],", "1 -> 2"),
        Place("fitted.py", "own[b * parts : (b + 1) * parts],", "b + 1 -> b - 1"),
    ),
    "the last of one is the first": (
        Place(
            "schemes/linear_float8.py", "fill_tile(0, 1, ((x,), (panel,), 0, 0, hidden))", "0 -> -1"
        ),
        Place(
            "sparse_axpy.py",
            "active, stride, whole = count[0], weight.shape[1], hidden // COLUMNS",
            "0 -> -1",
        ),
    ),
    "by logits alone, no centre is looked at": (
        Place(
            "samplers/prefix.py",
            "keep_by_logit(logits, np.float32(0), 0.0, np.float64(k), out)",
            "0 -> -1",
        ),
        Place(
            "samplers/prefix.py",
            "keep_by_logit(logits, top, 0.0, p * mass if p < 1 else np.inf, out)",
            "0.0 -> 1.0",
        ),
    ),
    "permission is asked for all the same: what is chosen is wrong, nothing that is computed": (
        Place("amx.py", "return bool(ctypes.CDLL(None).syscall(*words) == 0)"),
    ),
    "a check of what no kernel asks for": (
        Place("amx.py", "if not (1 <= rows <= 16 and 1 <= row_bytes <= 64):"),
    ),
    "of so many tokens cells are not dealt out, nothing is counted, and none is alone": (
        Place("schemes/linear_float8.py", "if tokens == 1 and hidden <= size:", "", "tokens"),
        Place(
            "schemes/linear_float8.py",
            "fill_tile(0, 1, ((x,), (panel,), 0, 0, hidden))",
            "",
            "tokens",
        ),
        Place(
            "attention.py", "chunks, step = chunks_of(lists.shape[1]), head_dim + 2", "", "tokens"
        ),
        Place("attention.py", "most = max(most, spans[t, 2] - spans[t, 1])", "", "tokens"),
        Place("attention.py", "copy(scratch, slot, desk, SUM + row, head_dim)", "", "tokens"),
        Place(
            "attention.py",
            "cells = spans[item // heads, 2] - spans[item // heads, 1]",
            "",
            "tokens",
        ),
    ),
    "chunks without cells are dealt out, too": (
        Place("attention_tile.py", "fewest, most = CHUNK, np.int64(0)", "0 -> 1"),
        Place(
            "attention.py",
            "most = max(most, spans[t, 2] - spans[t, 1])",
            "spans[t, 2] - spans[t, 1] -> spans[t, 2] + spans[t, 1]",
        ),
    ),
    "the largest of all may begin with any": (
        Place("fit.py", "largest, deepest = scales[block * parts], minima[block * parts]"),
        Place("encoding.py", "low, high = x[0], x[0]", "0 -> 1"),
    ),
    "the sum of x^2 - mean^2 is that of (x - mean)^2": (
        Place(
            "layer_norm.py",
            "squares += (float(x[t, i]) - mean) * (float(x[t, i]) - mean)",
            "float(x[t, i]) - mean -> float(x[t, i]) + mean",
        ),
    ),
    "blocks of weights are whole vectors": (
        Place(
            "linear_bf16.py", "if size == LANES and k + LANES <= depth:", "k + LANES -> k - LANES"
        ),
    ),
    "the sum over the one part is the block's": (
        Place("linear_blocks.py", "return whole if parts == 1 else added", "1 -> 0"),
    ),
    "either is below the key of what is left": (
        Place("samplers/prefix.py", "return 2**32 if max_lanes(lanes) > GONE else 0", "0 -> -1"),
    ),
    "243 less is 256 less, which is the same byte": (
        Place("encoding.py", "number = 0", "0 -> -1"),
    ),
    "four before the first of eight is four behind it": (
        Place("formats/fitted.py", "data[12 + p] = scales[p + 4] & 15", "p + 4 -> p - 4"),
    ),
    "the quotient is the same": (
        Place("simd.py", '"f32": 32, "f16": 16, "bf16": 16,', "16 -> 17"),
        Place("schemes/linear_w8a8.py", "LARGEST = (2**31 - 1) // 255**2", "1 -> 2"),
        Place(
            "simd_x86.py",
            "values = ir.Constant(index.type, [*table] * (index.type.count // 16))",
            "16 -> 15",
        ),
    ),
    "vectors are loaded from anywhere": (Place("simd.py", "bytes_.align = 1", "1 -> 2"),),
    "below these exp is less than any normal number, which its bound forgives": (
        Place(
            "simd_exp.py",
            'below = builder.fcmp_ordered("<", x, constant(kind.ir, -87.336540))',
            "87.33654 -> 88.2099054",
        ),
        Place("simd_exp.py", "clamped = sub(zero(f32x16),", "88.8 -> 89.688"),
    ),
}

# Wrong, and yet not seen: why. They count as survivors.
UNSEEN: dict[str, tuple[Place, ...]] = {
    "wrong at one size alone": (
        Place(
            "linear_amx.py",
            "most = min(deepest, size // ((count + ROWS - 1) // ROWS)) // whole * whole",
            "1 -> 2",
        ),
        Place(
            "attention.py",
            "elif spans[t, 2] - spans[t, 1] > chunk * CHUNK:",
            "chunk * CHUNK -> chunk + CHUNK",
        ),
    ),
    "written beyond an array on the stack, where nothing lies": (
        Place("linear_bf16.py", "for half in range(2):", "2 -> 3"),
    ),
    "wrong only for halves of heads that have 15 once more often than 16": (
        Place("rope.py", "whole = pairs // 16 * 16", "16 -> 15", "heads"),
    ),
    "wrong only for rows as long as a panel": (
        Place("sparse_linear.py", "at_once = max(1, min(tokens_at_once, most // units))", "1 -> 2"),
    ),
    "wrong for one value alone": (
        Place("samplers/prefix.py", "fraction = e / -math.expm1(-e * log_vocab) if e != 0"),
        Place("log_probabilities.py", "inverse = np.float32(1) / step if step >= LEAST_SCALE"),
    ),
    "one of so many summands is less than what the bound allows for any order of theirs": (
        Place("rms_norm.py", "for i in range(0, hidden, 16):", "0 -> 1", "hidden"),
    ),
    "wrong only where an infinity follows a row's end": (
        Place("linear_bf16.py", "left = max(0, min(LANES, hidden - at))", "0 -> 1"),
    ),
    "wrong only for the largest integers in groups of more than 33,025": (
        Place("schemes/linear_w8a8.py", "LARGEST = (2**31 - 1) // 255**2"),
    ),
    "all scores are moved alike, which shows only under a soft cap": (
        Place("attention_scalar.py", "dot = 0.0", "0.0 -> 1.0"),
    ),
}

# Functions that no kernel of a machine with a feature is made of: file, lines that hold a word.
UNREACHED = {
    ("amx_emulated.py", ""): ("amx-tile", "this CPU multiplies tiles itself"),
    ("simd.py", "0x7FFF"): ("f16c", "this CPU widens halves itself"),
}


def unseen(mutant: Mutant) -> str:
    """Why no trial notices one that is wrong; "" if that is not known."""
    return _reason(mutant, UNSEEN)


def _reason(mutant: Mutant, table: Mapping[str, tuple[Place, ...]]) -> str:
    found = (r for r, places in table.items() if any(place.has(mutant) for place in places))
    return next(found, "")


def reason_of(mutant: Mutant) -> str:
    """Why no trial can notice it; "" of one that a trial should notice."""
    file = mutant.file.rpartition("/")[2]
    for (unreached, word), (feature, why) in UNREACHED.items():
        if file == unreached and word in mutant.text and feature in cpu_features():
            return why
    return _reason(mutant, EQUIVALENT)
