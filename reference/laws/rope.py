"""Laws of rotary position embedding."""

import numpy as np

from reference.bounds import U, gamma
from reference.laws.common import other_bits
from reference.op import Apply, Array, Case, Law

PLAIN = {"magnitude": 1.0, "temperature": 0.0, "length": 1}
TUNED = {"temperature": 0.1, "length": 4096}


def magnitude_scales(apply: Apply, case: Case) -> str:
    """A magnitude of 2 doubles the rotation, bit for bit."""
    given = {"positions": _positions(case), "frequencies": _frequencies(case), **TUNED}
    once, twice = (apply({**given, "magnitude": m})["out"] for m in (1.0, 2.0))
    return other_bits({"out": twice}, {"out": 2 * once})


def temperature_changes_by_lengths(apply: Apply, case: Case) -> str:
    """Its factor is 1 within the first length, bit for bit, and constant within any other."""
    start, length = (0, 1000)[case.seed % 2], int(_positions(case)[0]) + 1
    positions = start * length + np.array([0, length // 2, length - 1], np.int32)
    given = {"positions": positions, "frequencies": np.zeros(1), "magnitude": 1.0, "length": length}
    out = apply({**given, "temperature": 0.5})["out"][:, 0, 0]
    wanted = np.float64(1 + 0.5 * np.log1p(start))
    off = np.abs(out - wanted) > (U * wanted if start else 0)
    return f"position {positions[off][0]} has {out[off][0]}, not {wanted}" if off.any() else ""


def position_zero_turns_nothing(apply: Apply, case: Case) -> str:
    """At position 0, and for a frequency of 0, cosines are 1 and sines 0."""
    frequencies = _frequencies(case)
    frequencies[-1] = 0
    positions = _positions(case)
    positions[0] = 0
    out = apply({"positions": positions, "frequencies": frequencies, **PLAIN})["out"]
    if (out[0] != [1, 0]).any() or (out[:, -1] != [1, 0]).any():
        return "a rotation by 0 is not (1, 0)"
    return ""


def doubled_positions_are_doubled_frequencies(apply: Apply, case: Case) -> str:
    """Only the product of position and frequency matters, bit for bit."""
    positions, frequencies = _positions(case), _frequencies(case)
    slow, fast = (
        apply({"positions": p, "frequencies": f, **PLAIN})
        for p, f in ((2 * positions, frequencies / 2), (positions, frequencies))
    )
    return other_bits(slow, fast)


def lengths_stay(apply: Apply, case: Case) -> str:
    """Rotation preserves the norm of each pair, and so of each head."""
    x = _heads(case)
    turn = _rotation(case, _positions(case)[: len(x)])
    out = apply({"x": x, "rotation": turn})["out"]
    before, after = (np.linalg.norm(v.astype(np.float64), axis=-1) for v in (x, out))
    # two products and a sum for each element, and rounded cosines and sines
    off = np.abs(after - before) > (np.sqrt(2) * gamma(2) + 2 * U) * before
    return f"a head of length {before[off][0]} has {after[off][0]}" if off.any() else ""


def unturned_is_itself(apply: Apply, case: Case) -> str:
    """Position 0, and dimensions beyond the pairs at any position, are copied bit for bit."""
    x = _heads(case)
    positions = np.array([0, 5, 0], np.int32)
    out = apply({"x": x, "rotation": _rotation(case, positions)})["out"]
    if (out[positions == 0] != x[positions == 0]).any():
        return "position 0 changes a head"
    beyond = slice(2 * case.shape["pairs"], None)
    turned = (out[..., beyond] != x[..., beyond]).any()
    return "a dimension beyond the pairs changes" if turned else ""


def only_the_distance_counts(apply: Apply, case: Case) -> str:
    """q . k depends only on the difference of their positions."""
    q, k = _heads(case)[:2, None]

    def product(query: int, key: int) -> Array:
        at_q, at_k = (_rotation(case, np.array([p], np.int32)) for p in (query, key))
        turned = apply({"x": q, "rotation": at_q})["out"].astype(np.float64)
        return np.asarray(np.sum(turned * apply({"x": k, "rotation": at_k})["out"], axis=-1))

    length = np.linalg.norm(q, axis=-1) * np.linalg.norm(k, axis=-1)
    for shift in (1, 100, 4096):
        # rotation errors of both heads, in both products
        if (np.abs(product(9 + shift, 4 + shift) - product(9, 4)) > gamma(20) * length).any():
            return f"query and key moved by {shift} have another product"
    return ""


def neighbours_turn(apply: Apply, case: Case) -> str:
    """Element 0 is rotated with element 1 and no other."""
    return _turns_with(1, apply, case)


def halves_turn(apply: Apply, case: Case) -> str:
    """Element 0 is rotated with the first element of the second half of the pairs and no other."""
    return _turns_with(case.shape["pairs"], apply, case)


def _turns_with(partner: int, apply: Apply, case: Case) -> str:
    x = np.zeros_like(_heads(case))
    x[:, :, 0] = 1
    out = apply({"x": x, "rotation": _rotation(case, np.array([1, 2, 3], np.int32))})["out"]
    touched = np.unique(np.argwhere(out)[:, 2]).tolist()
    return "" if touched == [0, partner] else f"element 0 goes to {touched}, not 0 and {partner}"


def _positions(case: Case) -> Array:
    return (2 ** case.rng().uniform(0, 20, max(3, case.shape["tokens"]))).astype(np.int32)


def _frequencies(case: Case) -> Array:
    pairs = case.shape["pairs"]
    return np.asarray(1e4 ** -(np.arange(pairs) / pairs))


def _rotation(case: Case, positions: Array) -> Array:
    angle = positions[:, None] * _frequencies(case)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


def _heads(case: Case) -> Array:
    dims = 3, max(1, case.shape["heads"]), case.shape["head_dim"]
    return case.rng().standard_normal(dims, np.float32)


LAWS_OF_ROTATION = (
    Law("magnitude-scales", magnitude_scales),
    Law("temperature-changes-by-lengths", temperature_changes_by_lengths),
    Law("position-zero-turns-nothing", position_zero_turns_nothing),
    Law("only-the-product-counts", doubled_positions_are_doubled_frequencies),
)
_SHARED = (
    Law("lengths-stay", lengths_stay),
    Law("unturned-is-itself", unturned_is_itself),
    Law("only-the-distance-counts", only_the_distance_counts),
)
LAWS_OF_TURNING = {
    "rope_norm": (*_SHARED, Law("neighbours-turn", neighbours_turn)),
    "rope_neox": (*_SHARED, Law("halves-turn", halves_turn)),
}
