"""Planted bugs of neuron_masks."""

from collections.abc import Mapping

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python, sharing
from reference.activations import sigmoid
from reference.neuron_masks import (
    active_rows,
    add_counts,
    neuron_split,
    threshold_mask,
    where_active,
)
from reference.op import Arguments, Array

Outputs = Mapping[str, Array]


Found = tuple[Array, Array]


def strictly_above(logits: Array, threshold: float) -> Array:
    return logits > threshold


def of_the_sigmoid(logits: Array, threshold: float) -> Array:
    return threshold_mask(sigmoid(logits), threshold)


def of_magnitudes(logits: Array, threshold: float) -> Array:
    return threshold_mask(np.abs(logits), threshold)


def first_token_for_all(logits: Array, threshold: float) -> Array:
    return np.broadcast_to(threshold_mask(logits[:1], threshold), logits.shape)


def first_token_alone(mask: Array) -> Array:
    return np.broadcast_to(mask[:1], mask.shape)


def without_the_last_token(mask: Array) -> Array:
    return np.broadcast_to(mask[:-1].max(axis=0, initial=0), mask.shape)


def of_every_token(mask: Array) -> Array:
    return np.broadcast_to(mask.min(axis=0, initial=1), mask.shape)


def counted(mask: Array) -> Array:
    return np.broadcast_to(mask.sum(axis=0), mask.shape)


def at_the_other_place(mask: Array, places: Array, place: float) -> Array:
    return neuron_split(mask, places, 1 - place)


def places_ignored(mask: Array, places: Array, place: float) -> Array:
    return mask


def place_of_the_next(mask: Array, places: Array, place: float) -> Array:
    return neuron_split(mask, np.roll(places, 1), place)


def count_off_by_one(mask: Array) -> Found:
    rows, count = active_rows(mask)
    return rows, count + 1


def stale_behind(mask: Array) -> Found:
    """What is behind the last row is left as the search for it made it."""
    rows, count = active_rows(mask)
    rows[count[0] :] = mask.any(axis=0)[count[0] :]
    return rows, count


def descending(mask: Array) -> Found:
    rows, count = active_rows(mask)
    rows[: count[0]] = rows[: count[0]][::-1].copy()
    return rows, count


def of_the_first_token(mask: Array) -> Found:
    return active_rows(mask[:1])


def last_neuron_missed(mask: Array) -> Found:
    return active_rows(mask * (np.arange(mask.shape[1]) < mask.shape[1] - 1))


def once_a_token(mask: Array) -> Found:
    """A neuron listed for every token that needs it, as far as there is room."""
    rows, found = np.zeros(mask.shape[1], int), np.sort(np.nonzero(mask)[1])[: mask.shape[1]]
    rows[: len(found)] = found
    return rows, np.array([len(found)])


def counted_anew(mask: Array, before: Array) -> Array:
    return np.asarray(add_counts(mask, 0 * before))


def once_for_all_tokens(mask: Array, before: Array) -> Array:
    return np.asarray(before + mask.any(axis=0))


def counted_in_a_byte(mask: Array, before: Array) -> Array:
    return np.asarray(add_counts(mask, before).astype(np.uint8))


def inactive_kept(x: Array, mask: Array) -> Array:
    return x


def active_zeroed(x: Array, mask: Array) -> Array:
    return where_active(x, 1 - mask)


def where_active_for_the_first(x: Array, mask: Array) -> Array:
    return where_active(x, first_token_alone(mask))


def same_place(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """A race: every thread puts its part's rows at the front."""
    neurons = inputs["mask"].shape[1]
    begin, end = (neurons * n // n_threads for n in (thread, thread + 1))
    rows, count = active_rows(inputs["mask"][:, begin:end])
    for out in outputs.values():
        out[...] = 0
    outputs["rows"][: count[0]] = rows[: count[0]] + begin
    outputs["count"] += count


IN_CUDA = (
    *in_cuda("threshold_mask", "neuron_masks.cu", (
        ("above-only", "logits[i] >= threshold", "logits[i] > threshold"),
        ("one-too-many", "if (i < static_cast<size_t>(tokens) * neurons) mask[i]",
         "if (i <= static_cast<size_t>(tokens) * neurons) mask[i]"),
    )),
    *in_cuda("union_mask", "neuron_masks.cu", (
        ("of-all", "found |= mask[t * n + neuron]", "found &= mask[t * n + neuron]"),
        ("without-the-last", "for (int t = 0; t < tokens; ++t) found |=",
         "for (int t = 0; t < tokens - 1; ++t) found |="),
        ("for-the-first-alone", "for (int t = 0; t < tokens; ++t) out[t * n + neuron] = found",
         "for (int t = 0; t < tokens; ++t) out[t * n + neuron] = t ? mask[t * n + neuron] : found"),
    )),
    *in_cuda("neuron_split", "neuron_masks.cu", (
        ("place-of-the-element", "places[i % neurons]", "places[i % tokens]"),
        ("elsewhere", "== place ? mask[i] : 0", "!= place ? mask[i] : 0"),
    )),
    *in_cuda("add_counts", "neuron_masks.cu", (
        ("afresh", "before[neuron] + found", "found"),
        ("once", "found += mask", "found |= mask"),
    )),
    *in_cuda("where_active", "neuron_masks.cu", (
        ("where-not", "mask[i] ? x[i] : 0.f", "mask[i] ? 0.f : x[i]"),
    )),
    *in_cuda("active_rows", "neuron_masks.cu", (
        ("bits-of-the-first-token", "t < tokens && !(found >> k & 1)", "t < 1"),
        ("beyond-the-last", "k < EACH && first + k < neurons", "k < EACH"),
        ("words-of-the-first-token", "any.x |= some.x,", "any.x = some.x,"),
        ("bytes-reversed", "words[k / 4] >> 8 * (k % 4)", "words[k / 4] >> 8 * (3 - k % 4)"),
        ("sum-of-neighbours", "m < WARP; m *= 2) {\n      const int other",
         "m < 2; m *= 2) {\n      const int other"),
        ("first-lane-tells", "if (lane == WARP - 1) counts", "if (lane == 0) counts"),
        ("warps-all-at-once", "      if (w < warp) place += counts[w];\n", ""),
        ("own-warp-twice", "if (w < warp)", "if (w <= warp)"),
        ("one-too-far", "before + running - __popc(found)", "before + running"),
        ("rest-as-it-was", "i < neurons; i += blockDim.x) rows[i] = 0", "i < 0; ++i) rows[i] = 0"),
        ("no-barrier-before-reading", "counts[warp] = running;\n    __syncthreads();",
         "counts[warp] = running;"),
        ("no-barrier-after-reading", "__ffs(found) - 1;\n    __syncthreads();",
         "__ffs(found) - 1;"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("threshold_mask",
        ("threshold-in-float", "const double threshold", "const float threshold"),
        ("nan-is-active", "b->logits[i] >= threshold", "!(b->logits[i] < threshold)"),
        ("element-beyond-65535", "b->logits[i] >= threshold", "b->logits[i & 65535] >= threshold"),
        ("negative-threshold-as-zero", "= b->threshold;", "= fmax(0, b->threshold);"),
        ("infinity-is-not-active", "b->logits[i] >= threshold",
         "b->logits[i] >= threshold && b->logits[i] < INFINITY"),
    ),
    *in_c("active_rows",
        ("at-most-4096", "if (any)", "if (any && count < 4096)"),
        ("neuron-of-sixteen-bits", "(int32_t)i;", "(uint16_t)i;",
         "shape", ({"tokens": 1, "neurons": 70000},)),
        ("of-32-tokens", "t < tokens; t++", "t < (tokens < 32 ? tokens : 32); t++"),
        ("static-count", "int64_t count = 0;", "static int64_t count;\n    count = 0;",
         "construction"),
    ),
)  # fmt: skip


BUGS = (
    *in_numba(
        "threshold_mask",
        "neuron_masks.py",
        (
            "threshold-in-float",
            "logits[t, i] >= threshold",
            "logits[t, i] >= np.float32(threshold)",
        ),
    ),
    *IN_C,
    *in_python(
        "threshold_mask", strictly_above, of_the_sigmoid, of_magnitudes, first_token_for_all
    ),
    *in_python("union_mask", first_token_alone, without_the_last_token, of_every_token, counted),
    *in_python("neuron_split", at_the_other_place, places_ignored, place_of_the_next),
    *in_python(
        "active_rows",
        count_off_by_one,
        stale_behind,
        descending,
        of_the_first_token,
        last_neuron_missed,
        once_a_token,
    ),
    *sharing("active_rows", same_place),
    *in_python("add_counts", counted_anew, once_for_all_tokens, counted_in_a_byte),
    *in_python("where_active", inactive_kept, active_zeroed, where_active_for_the_first),
    *IN_CUDA,
)
