"""Laws of attention over a KV cache."""

import math

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, CELLS = 5, 30
LONG = 773  # cells: more than a kernel's chunk, and no multiple of one
MANY = 10  # tokens: too many for split-KV
UNIT = 127  # exact in every format


def scene(case: Case, cells: int = CELLS, tokens: int = TOKENS, kv_heads: int = 2) -> Arguments:
    """Tokens over scattered cells of two sequences, with two query heads for each KV head."""
    rng = case.rng()
    assert case.format is not None
    layout, heads = FORMATS[case.format], 2 * kv_heads
    whole = layout.block // math.gcd(layout.block, kv_heads)
    head_dim = -(-case.shape["head_dim"] // whole) * whole
    end = rng.integers(1, cells + 1, tokens)
    keys, values = rng.standard_normal((2, cells, kv_heads * head_dim), dtype=np.float32)
    return {
        "q": rng.standard_normal((tokens, heads, head_dim), dtype=np.float32),
        "k": layout.quantise(keys),
        "v": layout.quantise(values),
        "lists": np.stack([rng.permutation(cells) for _ in range(2)]).astype(np.int32),
        "spans": np.stack([rng.integers(0, 2, tokens), 0 * end, end], axis=1).astype(np.int32),
        "positions": end.astype(np.int32),
        "cell_positions": np.arange(cells, dtype=np.int32),
        "slopes": (2.0 ** -rng.integers(2, 6, heads)).astype(np.float32),
        "sinks": np.where(np.arange(heads) % 3, rng.standard_normal(heads), -np.inf).astype(
            np.float32
        ),
        "scale": head_dim**-0.5,
        "softcap": 0.0,
        "format": case.format,
    }


def weighing(case: Case) -> Arguments:
    """One token over consecutive cells with one-hot values, so that its output is the weights times
    UNIT."""
    inputs = scene(case, tokens=1, kv_heads=1)
    head_dim = inputs["q"].shape[2]
    count = min(CELLS, head_dim)
    one_each = UNIT * np.eye(CELLS, head_dim, dtype=np.float32)
    return {
        **inputs,
        "v": FORMATS[inputs["format"]].quantise(one_each),
        "lists": np.arange(CELLS, dtype=np.int32)[None],
        "spans": np.array([[0, 0, count]], np.int32),
        "positions": np.array([count - 1], np.int32),
        "slopes": np.zeros(2, np.float32),
        "sinks": no_sinks(2),
    }


def no_sinks(heads: int) -> Array:
    return np.full(heads, -np.inf, np.float32)


def weights_of(apply: Apply, inputs: Arguments) -> Array:
    """The weights that `weighing`'s token gives to the cells it sees."""
    return np.asarray(apply(inputs)["out"][0, 0, : inputs["spans"][0, 2]] / UNIT)


def cells_out_of_sight_never_matter(apply: Apply, case: Case) -> str:
    """Cells that a token does not see, later ones and NaN included, change no bit."""
    for tokens, cells in ((TOKENS, CELLS), (MANY, LONG)):
        inputs = scene(case, cells, tokens)
        before = apply(inputs)["out"]
        for t in (0, tokens - 1):
            sequence, begin, end = inputs["spans"][t]
            seen = inputs["lists"][sequence, begin:end]
            spoilt = {name: np.full_like(inputs[name], 0xFF) for name in ("k", "v")}
            for name in spoilt:
                spoilt[name][seen] = inputs[name][seen]
            after = apply({**inputs, **spoilt})["out"]
            if found := other_bits({"out": after[t]}, {"out": before[t]}):
                return f"a token depends on cells that it does not see: {found}"
    return ""


def where_a_cell_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Permuting the cells of the cache and their lists changes no bit."""
    for cells in (CELLS, LONG):
        inputs = scene(case, cells)
        moved = case.rng().permutation(cells)  # new index -> old index
        elsewhere = {name: inputs[name][moved] for name in ("k", "v", "cell_positions")}
        elsewhere["lists"] = np.argsort(moved).astype(np.int32)[inputs["lists"]]
        if found := other_bits(apply({**inputs, **elsewhere}), apply(inputs)):
            return f"{cells} cells permuted: {found}"
    return ""


def a_token_attends_alone(apply: Apply, case: Case) -> str:
    """Tokens of a batch have the bits of single tokens, over any number of cells, of one prompt or
    of any sequences."""
    for tokens, cells in ((TOKENS, CELLS), (MANY, LONG)):
        inputs = scene(case, cells, tokens)
        prompt = np.array([[1, 3, 4 + cells // 2 + t] for t in range(tokens)], np.int32)
        for spans in (inputs["spans"], prompt):
            together = apply({**inputs, "spans": spans})["out"]
            for t in (0, tokens // 2, tokens - 1):
                one = {name: inputs[name][t : t + 1] for name in ("q", "positions")}
                alone = apply({**inputs, **one, "spans": spans[t : t + 1]})
                if found := other_bits(alone, {"out": together[t : t + 1]}):
                    return f"token {t} of {tokens} without the others: {found}"
    return ""


def a_head_attends_alone(apply: Apply, case: Case) -> str:
    """NaN in a head's query, slope or sink makes this head's output for that token NaN and changes
    no bit of others."""
    for tokens, cells in ((TOKENS, CELLS), (MANY, LONG)):
        inputs = scene(case, cells, tokens)
        clean, t = apply(inputs)["out"], tokens - 2
        for head in range(clean.shape[1]):
            q, want = inputs["q"].copy(), clean.copy()
            q[t, head, -1] = want[t, head] = np.nan
            if found := other_bits(apply({**inputs, "q": q}), {"out": want}):
                return f"with NaN in head {head} of token {t}: {found}"
            for name in ("slopes", "sinks"):
                of_heads, want = inputs[name].copy(), clean.copy()
                of_heads[head] = want[:, head] = np.nan
                if found := other_bits(apply({**inputs, name: of_heads}), {"out": want}):
                    return f"with NaN in {name} for head {head}: {found}"
    return ""


def grouped_queries_are_full_heads_repeated(apply: Apply, case: Case) -> str:
    """GQA equals multi-head attention with each KV head repeated for its group, bit for bit."""
    for kv_heads in (2, 8):
        inputs = scene(case, kv_heads=kv_heads)

        def repeated(cache: Array, kv_heads: int = kv_heads) -> Array:
            rows = cache.reshape(CELLS, kv_heads, -1)
            return np.ascontiguousarray(np.repeat(rows, 2, axis=1).reshape(CELLS, -1))

        if inputs["q"].shape[2] % FORMATS[inputs["format"]].block:
            continue  # a block spans two heads
        full = {name: repeated(inputs[name]) for name in ("k", "v")}
        if found := other_bits(apply({**inputs, **full}), apply(inputs)):
            return f"{kv_heads} KV heads, each repeated for its group: {found}"
    return ""


def one_cell_returns_its_value(apply: Apply, case: Case) -> str:
    """A token that sees one cell, and no sink, returns its value exactly."""
    inputs = {**scene(case), "sinks": no_sinks(4)}
    inputs["spans"][:, 1:] = [[t, t + 1] for t in range(TOKENS)]
    cells = inputs["lists"][inputs["spans"][:, 0], np.arange(TOKENS)]
    values = FORMATS[inputs["format"]].dequantise(inputs["v"][cells]).reshape(TOKENS, 2, 1, -1)
    want = np.repeat(values, 2, axis=2).reshape(inputs["q"].shape)
    return other_bits({"out": apply(inputs)["out"] + 0}, {"out": want + 0})


def no_cells_give_zero(apply: Apply, case: Case) -> str:
    """A token without cells gives 0, not NaN, in a batch too."""
    for tokens in (1, TOKENS, MANY):
        inputs = scene(case, tokens=tokens)
        inputs["spans"][::2, 2] = inputs["spans"][::2, 1]
        if not (apply(inputs)["out"][::2] == 0).all():
            return f"of {tokens} tokens one without cells is not 0"
    return ""


def a_window_is_a_cache_without_the_rest(apply: Apply, case: Case) -> str:
    """A span that begins later equals a list without the cells before."""
    for cells in (CELLS, LONG):
        inputs = scene(case, cells)
        inputs["spans"] = np.array([[0, 11, cells - 2]] * TOKENS, np.int32)
        shorter = {"lists": np.roll(inputs["lists"], -11, axis=1)}
        shorter["spans"] = np.array([[0, 0, cells - 13]] * TOKENS, np.int32)
        if found := other_bits(apply({**inputs, **shorter}), apply(inputs)):
            return f"without the cells before the window: {found}"
    return ""


def only_distance_matters(apply: Apply, case: Case) -> str:
    """Adding the same offset to all positions, beyond float32's integers, changes no bit."""
    inputs = scene(case)
    by = 2**24 + 1
    shifted = {name: inputs[name] + np.int32(by) for name in ("positions", "cell_positions")}
    found = other_bits(apply({**inputs, **shifted}), apply(inputs))
    return f"positions shifted by {by}: {found}" if found else ""


def positions_need_slopes(apply: Apply, case: Case) -> str:
    """Without ALiBi slopes positions change no bit."""
    inputs = {**scene(case), "slopes": np.zeros(4, np.float32)}
    far = inputs["cell_positions"][::-1] * np.int32(1000)
    found = other_bits(apply({**inputs, "cell_positions": far}), apply(inputs))
    return f"other positions, slopes of 0: {found}" if found else ""


def outputs_are_averages(apply: Apply, case: Case) -> str:
    """Without sinks outputs are within the range of the seen values."""
    for tokens, cells in ((TOKENS, CELLS), (MANY, LONG)):
        inputs = {**scene(case, cells, tokens), "sinks": no_sinks(4)}
        out = apply(inputs)["out"].reshape(tokens, 2, 2, -1)
        values = FORMATS[inputs["format"]].dequantise(inputs["v"]).reshape(cells, 2, 1, -1)
        for t, (sequence, begin, end) in enumerate(inputs["spans"]):
            seen = values[inputs["lists"][sequence, begin:end]]
            reach = 1e-4 * np.abs(seen).max()
            if not (out[t] <= seen.max(axis=0) + reach).all():
                return f"token {t} exceeds all values that it sees"
            if not (out[t] >= seen.min(axis=0) - reach).all():
                return f"token {t} is below all values that it sees"
    return ""


def a_scale_of_zero_is_the_mean(apply: Apply, case: Case) -> str:
    """With a scale of 0 all seen cells have equal weights, which sum to one."""
    inputs = {**weighing(case), "scale": 0.0}
    for cells in {1, inputs["spans"][0, 2] // 2, inputs["spans"][0, 2]} - {0}:
        weights = weights_of(apply, {**inputs, "spans": np.array([[0, 0, cells]], np.int32)})
        if not np.allclose(weights, 1 / cells, rtol=1e-5, atol=0):
            return f"of {cells} equal cells one has the weight {weights[0]}, not 1 / {cells}"
    return ""


def a_sink_weighs_like_a_cell(apply: Apply, case: Case) -> str:
    """Next to cells of score 0, a sink s has the weight e^s / (cells + e^s), for few and many
    tokens; neither scale nor softcap changes it."""
    inputs = {**weighing(case), "scale": 0.0, "softcap": 1.0}
    cells = inputs["spans"][0, 2]
    for tokens in (1, MANY):
        alike = {"q": (tokens, 1, 1), "spans": (tokens, 1), "positions": (tokens,)}
        inputs |= {name: np.tile(inputs[name][:1], times) for name, times in alike.items()}
        for sink in (-1e30, -1.0, 0.0, 3.0, 1e30):
            sinks = np.array([-np.inf, sink], np.float32)
            weights = apply({**inputs, "sinks": sinks})["out"][-1, :, :cells] / UNIT
            taken = np.exp(min(sink, 700.0))
            if not np.allclose(
                weights, [[1 / cells], [1 / (cells + taken)]], rtol=1e-5, atol=1e-38
            ):
                return f"next to {cells} cells a sink of {sink} leaves {weights[1, 0]} for each"
    return ""


def alibi_weights_fall_with_distance(apply: Apply, case: Case) -> str:
    """For equal keys, each step of distance multiplies the weight by exp(-slope)."""
    inputs = {**weighing(case), "scale": 0.0, "slopes": np.array([0.25, 0], np.float32)}
    for step in (1, 1000):
        slopes = inputs["slopes"] / np.float32(step)
        places = {name: inputs[name] * np.int32(step) for name in ("positions", "cell_positions")}
        weights = weights_of(apply, {**inputs, **places, "slopes": slopes})
        if not np.allclose(weights[:-1], weights[1:] * np.exp(-0.25), rtol=1e-4, atol=0):
            return f"weights do not decay by e^-0.25 over {step} more of distance"
    return ""


def a_softcap_bounds_the_odds(apply: Apply, case: Case) -> str:
    """With scores capped at c the ratio of two weights is at most e^2c, which extreme keys
    reach."""
    inputs = {**weighing(case), "scale": 1e5}
    if inputs["spans"][0, 2] < 16:
        return ""  # too few keys may all have one sign
    for cap in (0.5, 1.0, 3.0):
        weights = weights_of(apply, {**inputs, "softcap": cap})
        if not np.isclose(weights.max(), weights.min() * np.exp(2 * cap), rtol=1e-4):
            return f"the ratio of weights with a softcap of {cap} is not e^{2 * cap}"
    return ""


def infinite_queries_are_capped(apply: Apply, case: Case) -> str:
    """With an infinite query element a key's score is plus or minus the softcap."""
    inputs = {**weighing(case), "softcap": 1.0}
    inputs["q"][0, :, 0] = np.inf
    keys = case.rng().choice(np.array([-1, 1], np.float32), (CELLS, inputs["q"].shape[2]))
    odds = np.exp(keys[: inputs["spans"][0, 2], 0].astype(np.float64))
    inputs["k"] = FORMATS[inputs["format"]].quantise(keys)
    if np.allclose(weights_of(apply, inputs), odds / odds.sum(), rtol=1e-4, atol=0):
        return ""
    return "an infinite query does not give each cell plus or minus the softcap for a score"


def huge_scores_do_not_overflow(apply: Apply, case: Case) -> str:
    """Scores far beyond exp's range select the best cell."""
    inputs = {**weighing(case), "scale": 1e5}
    weights = weights_of(apply, inputs)
    keys = FORMATS[inputs["format"]].dequantise(inputs["k"]).astype(np.float64)
    scores = (keys @ inputs["q"][0, 0])[: len(weights)]
    best = int(np.argmax(scores))
    apart = scores[best] - np.delete(scores, best).max(initial=-np.inf)
    return "" if weights[best] == 1 or apart < 0.01 else "the best cell does not get all weight"


LAWS = (
    Law("cells-out-of-sight", cells_out_of_sight_never_matter),
    Law("cells-anywhere", where_a_cell_lies_changes_no_bit),
    Law("tokens-alone", a_token_attends_alone),
    Law("heads-alone", a_head_attends_alone),
    Law("grouped-queries-repeated", grouped_queries_are_full_heads_repeated),
    Law("one-cell-is-its-value", one_cell_returns_its_value, float32=True),
    Law("no-cells-give-zero", no_cells_give_zero),
    Law("window-without-the-rest", a_window_is_a_cache_without_the_rest),
    Law("only-distance-matters", only_distance_matters),
    Law("positions-need-slopes", positions_need_slopes),
    Law("outputs-are-averages", outputs_are_averages, float32=True),
    Law("scale-zero-is-the-mean", a_scale_of_zero_is_the_mean, float32=True),
    Law("sink-weighs-like-a-cell", a_sink_weighs_like_a_cell, float32=True),
    Law("alibi-falls-with-distance", alibi_weights_fall_with_distance, float32=True),
    Law("softcap-bounds-the-odds", a_softcap_bounds_the_odds, float32=True),
    Law("infinite-queries-are-capped", infinite_queries_are_capped, float32=True),
    Law("huge-scores-pick-one", huge_scores_do_not_overflow),
)
