"""The references compared with the authors' PyTorch code of KIVI, Quest and MInference.

ASSAY_AUTHORS names a folder with checkouts of jy-yuan/KIVI, mit-han-lab/Quest and
microsoft/MInference under these names; without it these tests skip (docs/peers.md). Single
functions of their files run, on the CPU, since the files themselves need GPUs.
"""

import ast
import math
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from reference.attention.pattern_attention import BLOCK
from reference.attention.prompt_patterns import block_scores, stripe_sums, top_scores
from reference.cache.policies import quest
from reference.formats.kivi import (
    GROUP,
    STEPS,
    keys_of,
    page_of_keys,
    page_of_values,
    quantised,
    values_of,
)

torch = pytest.importorskip("torch", reason="torch is missing: make test-transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Using a non-tuple sequence:UserWarning")
FOLDER = os.environ.get("ASSAY_AUTHORS", "")
KV_HEADS, HEAD_DIM, PAGES = 3, 64, 4
LAST, FIRST, RECENT = 64, 30, 100  # of MInference's code: observers, and what is always seen


def functions(path, *names, **known):
    """Functions of these names in a file, OUTER.INNER for nested ones, with `known` globals."""
    if not FOLDER:
        pytest.skip("ASSAY_AUTHORS names no folder with the authors' code: docs/peers.md")
    file = Path(FOLDER, path)
    if not file.is_file():
        pytest.skip(f"{file} is missing: docs/peers.md")
    found = []
    for name in names:
        node = ast.parse(file.read_text())
        for part in name.split("."):
            node = next(n for n in node.body if getattr(n, "name", "") == part)
        found.append(node)
    scope = {"torch": torch, "nn": torch.nn, "math": math, **known}
    exec(compile(ast.Module(found, []), str(file), "exec"), scope)
    return SimpleNamespace(**{node.name: scope[node.name] for node in found})


@pytest.fixture(scope="module", name="kivi")
def _kivi():
    return functions(
        "KIVI/quant/new_pack.py", "quant_and_pack_kcache", "quant_and_pack_vcache",
        "unpack_and_dequant_kcache", "unpack_and_dequant_vcache", "pack_tensor", "unpack_tensor",
    )  # fmt: skip


def authors_kivi(kivi, kind, x):
    """Their codes, steps and zero points for float32 [tokens, kv_heads, head_dim], and the decoded
    numbers, as [tokens, kv_heads, head_dim], all by element."""
    given = torch.from_numpy(x).permute(1, 0, 2)[None].contiguous()
    packed, steps, zeros = getattr(kivi, f"quant_and_pack_{kind}cache")(given, GROUP, 2)
    numbers = getattr(kivi, f"unpack_and_dequant_{kind}cache")(packed, steps, zeros, GROUP, 2)
    codes = kivi.unpack_tensor(packed, 2, 2 if kind == "k" else 3)
    by_element = [
        part.expand(*part.shape[:3], GROUP, HEAD_DIM)
        if kind == "k"
        else part.expand(*part.shape[:4], GROUP)
        for part in (steps, zeros)
    ]
    parts = codes, *(part.reshape(codes.shape) for part in by_element), numbers
    return [part[0].permute(1, 0, 2).numpy() for part in parts]


def reference_kivi(kind, x):
    """The same from the reference's pages."""
    groups = x.reshape(PAGES, GROUP, KV_HEADS, HEAD_DIM)
    if kind == "k":
        by_channel = quantised(groups.transpose(0, 2, 3, 1))
        codes = by_channel[0].transpose(0, 3, 1, 2)
        others = (np.repeat(part[:, None], GROUP, axis=1) for part in by_channel[1:])
    else:
        codes, *parts = quantised(groups.reshape(PAGES, GROUP, KV_HEADS, -1, GROUP))
        codes = codes.reshape(groups.shape)
        others = (np.repeat(part, GROUP, axis=-1) for part in parts)
    page_of, numbers_of = {"k": (page_of_keys, keys_of), "v": (page_of_values, values_of)}[kind]
    numbers = numbers_of(np.stack([page_of(group) for group in groups]))
    zeros, steps = (part.reshape(x.shape) for part in others)
    return codes.reshape(x.shape), STEPS[steps], zeros, numbers.reshape(x.shape)


@pytest.mark.parametrize("kind", ["k", "v"])
def test_kivi_codes_equal_the_authors(kivi, kind):
    """If steps are exact in eight bits, codes, steps, zero points and decoded numbers agree."""
    rng = np.random.default_rng(25)
    shape = (PAGES, GROUP, KV_HEADS, HEAD_DIM)
    axis = (0, KV_HEADS, HEAD_DIM) if kind == "k" else (GROUP, KV_HEADS, HEAD_DIM // GROUP)
    dims = (PAGES, 1, *axis[1:]) if kind == "k" else (PAGES, *axis, 1)
    steps = 2.0 ** rng.integers(-4, 3, dims) * rng.integers(8, 16, dims) / 8
    zeros = rng.integers(-16, 17, dims) / 4
    within = rng.integers(0, 49, shape).reshape(shape if kind == "k" else (*shape[:3], -1, GROUP))
    ends = (0, slice(None)), (1, slice(None))
    for code, (place, _) in zip((0, 48), ends, strict=True):  # both ends of every group are there
        within[(slice(None), place) if kind == "k" else (..., place)] = code
    x = (zeros + steps * within / 16).reshape(-1, KV_HEADS, HEAD_DIM).astype(np.float32)
    for own, other in zip(reference_kivi(kind, x), authors_kivi(kivi, kind, x), strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("kind", ["k", "v"])
def test_kivi_steps_are_rounded_up_to_eight_bits(kivi, kind):
    """In general zero points agree, and steps are theirs rounded up to eight bits: few codes
    differ, by one at most, and numbers by half a step."""
    x = np.random.default_rng(26).standard_normal((PAGES * GROUP, KV_HEADS, HEAD_DIM))
    x = x.astype(np.float16).astype(np.float32)
    codes, steps, zeros, numbers = reference_kivi(kind, x)
    their_codes, their_steps, their_zeros, their_numbers = authors_kivi(kivi, kind, x)
    np.testing.assert_array_equal(zeros, their_zeros)
    assert (steps >= their_steps).all()
    assert (steps <= their_steps * 1.125).all()
    apart = np.abs(codes.astype(int) - their_codes)
    assert apart.max() <= 1
    print(f"KIVI, {kind}: {(apart == 0).mean():.1%} of codes are theirs")
    assert (apart == 0).mean() > 0.9
    off = np.abs(numbers - their_numbers)
    assert (off <= (steps + their_steps) / 2 * (1 + 1e-6)).all()


def prompt(seed, tokens, head_dim=32):
    """Queries and keys of one head with some structure: float32 [tokens, 1, head_dim]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((2, tokens, 1, head_dim)).astype(np.float32)


def cells(keys):
    """Keys as rows of a cache, the list of its cells, and the tokens' spans."""
    tokens = len(keys)
    spans = np.array([(0, 0, t + 1) for t in range(tokens)], np.int32)
    rows = np.ascontiguousarray(keys).reshape(tokens, -1).view(np.uint8)
    return rows, np.arange(tokens, dtype=np.int32)[None], spans


@pytest.mark.parametrize(("tokens", "columns", "diagonals"), [(300, 60, 150), (64, 40, 60)])
def test_minference_columns_and_diagonals_equal_the_authors(tokens, columns, diagonals):
    """The authors' columns and diagonals, from the last 64 queries, equal the reference's,
    including those that are always seen."""
    q, k = prompt(tokens, tokens)
    chosen = []
    sees = torch.arange(LAST)
    their = functions(
        "MInference/minference/modules/minference_forward.py",
        "sum_all_diagonal_matrix",
        "gather_last_q_vertical_slash_topk_v4.vertical_and_slash_kernel",
        self=SimpleNamespace(head_dim=q.shape[2]), q_len=tokens,
        LAST_Q_MASK=(sees[:, None] >= sees)[None, None],
        vertical_slash_sparse_attention=lambda *given: chosen.extend(given[3:]),
    )  # fmt: skip
    given = [torch.from_numpy(x).permute(1, 0, 2)[None] for x in (q, k)]
    their.vertical_and_slash_kernel(*given, given[1], columns, diagonals)
    before = np.zeros((1, 2, tokens), np.float32)
    scale = 1 / math.sqrt(q.shape[2])
    ((upright, slanted),) = stripe_sums(q, *cells(k), scale, 0.0, LAST, before, "F32")
    own = top_scores(upright, columns, FIRST), top_scores(slanted, diagonals, RECENT)
    if diagonals < RECENT:  # so few that they are chosen among those always seen
        own = own[0], np.arange(RECENT)
        assert set(chosen[1].ravel().tolist()) <= set(own[1])
        return
    for mine, other in zip(own, chosen, strict=True):
        assert set(mine.tolist()) == set(other.ravel().tolist())


@pytest.mark.parametrize(("tokens", "blocks"), [(640, 4), (1024, 7)])
def test_minference_blocks_equal_the_authors(tokens, blocks):
    """The authors' blocks equal the reference's for prompts of whole blocks."""
    q, k = prompt(tokens, tokens)
    their = functions(
        "MInference/minference/ops/block_sparse_flash_attention.py", "_build_block_index"
    )
    given = [torch.from_numpy(x).permute(1, 0, 2)[None] for x in (q, k)]
    (index,) = their._build_block_index(*given, blocks)[0].numpy()
    count = tokens // BLOCK
    before = np.zeros((1, count, count), np.float32)
    (scores,) = block_scores(q, *cells(k), before, "F32")
    for b in range(count):
        mine = top_scores(scores[b, : b + 1], blocks, 0)
        assert set(mine.tolist()) == set(index[b][index[b] <= b].tolist())


class RecordingAttention:
    """Their attention with projections that give these queries and keys, [heads, tokens, dim];
    records the selected cells."""

    layer_id, hidden_size = 2, 0

    def __init__(self, q, keys, budget, page):
        self.num_heads, self.head_dim = len(q), keys.shape[-1]
        self.num_key_value_heads, self.num_key_value_groups = len(keys), len(q) // len(keys)
        self.token_budget, self.chunk_size = budget, page
        self.hidden_size = self.num_heads * self.head_dim
        new = keys[:, -1:].permute(1, 0, 2).reshape(1, 1, -1)
        self.q_proj, self.k_proj, self.v_proj = (
            lambda _: q.reshape(1, 1, -1), lambda _: new, lambda _: new,
        )  # fmt: skip
        self.held = keys[None, :, :-1], keys[None, :, :-1]
        self.o_proj = self.rotary_emb = lambda *_: (None, None)


@pytest.mark.parametrize("seed", range(6))
def test_quest_pages_equal_the_authors(seed):
    """The authors' pages equal the reference's, except that a token's own page competes, as
    documented in `quest`: if it loses, they read one more of the others."""
    page, budget, held = 16, 64, 200 + 7 * seed
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((4, HEAD_DIM)).astype(np.float32)
    keys = rng.standard_normal((held, 4, HEAD_DIM)).astype(np.float32)
    their = functions("Quest/evaluation/quest_attention.py", "local_heavy_hitter_mask")
    masks = []

    def choice(*given):
        masks.append(their.local_heavy_hitter_mask(*given))
        return masks[0]

    attention = functions(
        "Quest/evaluation/quest_attention.py", "forward", local_heavy_hitter_mask=choice,
        apply_rotary_pos_emb=lambda q, k, *_: (q, k), repeat_kv=lambda x, _: x,
        DynamicCache=dict, Optional=dict, Tuple=tuple,
    )  # fmt: skip
    asked = RecordingAttention(
        torch.from_numpy(q), torch.from_numpy(keys).permute(1, 0, 2), budget, page
    )
    where = torch.tensor([[held - 1]])
    attention.forward(asked, torch.zeros(1, 1, 1), None, where, asked.held)
    own, last = quest(q, keys, page, budget // page, 4), (held - 1) // page
    for mine, mask in zip(own, masks[0][0, :, 0].numpy(), strict=True):
        pages, others = ({int(j) // page for j in slots} for slots in (mine, np.flatnonzero(mask)))
        assert pages - others <= {last}
        assert others - pages == set() if last in others else len(others - pages) == 1
