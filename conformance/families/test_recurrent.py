"""Families with recurrent state: logits against formulas and llama.cpp, bit identity, drafts,
sessions."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.llama.peers.compare import EXACT, PROMISE, demand_near, engine_logits, nmse
from conformance.llama.peers.rounding import as_llama_cpp
from conformance.support.bit_laws import (  # noqa: F401 - laws, of this file's subject
    ROOM,
    subject_of,
    test_batch_limit,
    test_batched_or_alone,
    test_chunks,
    test_copied_prefix,
    test_removed_and_evaluated_anew,
    test_steps_repeat,
    test_threads,
    test_tree_of_tokens,
    test_wanted_rows,
)
from conformance.support.budgets import bits, budgeted, wanted
from conformance.support.models.small_families import (
    SUBJECTS,
    SmallDeepSeek,
    SmallGlmMoe,
    exact,
    linear_of_either,
    prompt,
)
from conformance.support.models.small_models import tampered
from conformance.support.models.small_recurrent import RECURRENT, SmallLfm2, SmallQwen3Next
from conformance.support.models.steps import loaded, rows
from conformance.support.speculation.oracle import Oracle
from conformance.support.speculation.speculating import (
    CONTEXT,
    LONGEST,
    demand_settled,
    drafting,
    ids,
    pieces,
    unmarked,
)
from conformance.support.speculation.speculating import ROOM as ROOM_FOR_DRAFTS
from engine import Engine, SamplingParams
from engine.cache.session import SessionError, restore, save
from engine.cache.states import StateError, slots_for
from engine.config import ModelError
from engine.gguf.file import GGUFFile
from engine.metadata.config import config_of
from engine.model_info import model_info
from engine.options import Options
from engine.quantise import Recipe, quantise
from engine.quantise.quantise import choices
from reference.models.transformer import Weight

each = pytest.mark.parametrize("small", RECURRENT.values(), ids=RECURRENT)
TEXT = [1, 5, 8, 13, 21, 34, 55]


@each
def test_logits_are_the_formulas(small, tmp_path):
    """Float weights give the formula's logits within float32's rounding."""
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)
    demand_near(ours, exact(small, tokens), EXACT / 10)


@each
def test_quantised_weights(small, tmp_path):
    """Activations are quantised to int8 as in the formula, except ties and those for a router in
    F32."""
    small = replace(small, format="Q8_0", hidden=64)
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)
    theirs = exact(small, tokens, linear=linear_of_either).astype(np.float32)
    demand_near(ours, theirs, PROMISE * small.blocks)


@pytest.mark.parametrize("name", ["Mamba, untied, F16", "Mamba 2, one group, F16"])
def test_llama_cpp_rounds_what_f16_meets(llama_cpp, name, tmp_path):
    """It rounds activations to F16, and nothing else: the formula with this rounding gives
    llama.cpp's logits, except where float32 errors change a rounding."""
    path, tokens = RECURRENT[name].write(tmp_path / "small.gguf"), prompt(RECURRENT[name])
    theirs, plain = llama_cpp.logits(path, tokens), exact(RECURRENT[name], tokens)
    assert nmse(theirs, plain) > 10 * nmse(
        theirs, exact(RECURRENT[name], tokens, linear=as_llama_cpp)
    )
    demand_near(engine_logits(path, tokens), plain, EXACT / 10)


@each
def test_llama_cpp_agrees(llama_cpp, small, tmp_path):
    """It opens the same file."""
    small = replace(small, format="F32")
    path, tokens = small.write(tmp_path / "small.gguf"), prompt(small)
    demand_near(engine_logits(path, tokens), llama_cpp.logits(path, tokens), EXACT / 10)


@each
def test_quantised_files_run(small, tmp_path):
    """Matrices become Q8_0; inputs of scans and convolutions stay. The engine gives the formula's
    logits for the file's weights."""
    small = replace(small, format="F32")
    path, out = small.write(tmp_path / "small.gguf"), tmp_path / "q.gguf"
    with GGUFFile(path) as file:
        quantise(file, out, Recipe("Q8_0"), threads=1)
    with GGUFFile(out) as file:
        kinds = {name: info.type_name for name, info in file.tensors.items()}
        found = {name: Weight(file.tensor(name).copy(), kind) for name, kind in kinds.items()}
    apart = {f"blk.{i}.{name}" for i in range(small.blocks) for name in small.apart()}
    weights, others = small.tensors()
    routers = {name for name in weights if name.endswith("ffn_gate_inp.weight")}
    assert {name for name, kind in kinds.items() if kind == "Q8_0"} == weights.keys() - routers
    assert {kinds[name] for name in apart & kinds.keys()} == {"F32"}
    tokens = np.array(prompt(small), np.int32)
    theirs = small.formula()(tokens, found, others, small.shape(), linear=linear_of_either)
    ours = engine_logits(out, tokens.tolist())
    demand_near(ours, theirs.astype(np.float32), PROMISE * small.blocks)


@pytest.mark.parametrize(
    ("attending", "mix", "formats"),
    [
        ((2, 5, 8, 10, 11), "Q4_K_M", ["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q6_K"]),
        ((2, 5, 8, 10, 11), "Q4_K_S", ["Q5_K"] * 4 + ["Q4_K"]),
        ((2, 5, 8, 10, 11), "IQ4_XS", ["IQ4_XS"] * 5),
        ((0, 2, 4, 6, 8, 9), "Q4_K_M", ["Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"]),
        ((0, 2, 4, 6, 8, 9), "IQ4_XS", ["Q5_K"] * 6),
    ],
)
def test_mixes_count_blocks_that_attend(attending, mix, formats, tmp_path):
    """As llama.cpp chose for the same file: the extra bits of attn_v go by the index among
    attention blocks, and shared KV heads are determined by the first block."""
    small = SmallLfm2(
        blocks=attending[-1] + 1, attending=attending, hidden=256, heads=8, head_dim=32, ffn=512
    )
    with GGUFFile(small.write(tmp_path / "small.gguf")) as file:
        plan = {choice.tensor.name: choice.format for choice in choices(file, Recipe(mix))}
    assert [plan[f"blk.{i}.attn_v.weight"] for i in attending] == formats


def test_mixes_count_delta_nets_among_blocks_that_attend(tmp_path):
    """The fused projection has the formats of values, by the index of the block."""
    small = SmallQwen3Next(
        architecture="qwen35", experts=0, blocks=12, interval=4, hidden=256, heads=8, head_dim=32,
        ffn=512,
    )  # fmt: skip
    with GGUFFile(small.write(tmp_path / "small.gguf")) as file:
        plan = {choice.tensor.name: choice.format for choice in choices(file, Recipe("Q4_K_M"))}
    names = ["attn_qkv", "attn_qkv", "attn_qkv", "attn_v"] * 3
    found = [plan[f"blk.{i}.{name}.weight"] for i, name in enumerate(names)]
    assert [i for i, kind in enumerate(found) if kind == "Q6_K"] == [0, 3, 6, 9, 10, 11]
    assert {plan[f"blk.0.{n}.weight"] for n in ("attn_gate", "ssm_beta", "ssm_alpha")} == {"Q4_K"}


@pytest.mark.parametrize(
    "small",
    [
        SmallQwen3Next(architecture="qwen35", experts=0, blocks=4),
        SmallGlmMoe(blocks=4),
        SmallDeepSeek(blocks=4),
    ],
    ids=lambda small: small.architecture,
)
def test_blocks_of_mtp_are_left_out(small, tmp_path):
    """A file may have an MTP block, with a head of its own, from which llama.cpp drafts: logits are
    those without it, and a note says so."""
    head = {f"blk.3.nextn.{name}.weight": np.ones(64, np.float32) for name in ("enorm", "hnorm")}
    path, tokens = tmp_path / "small.gguf", prompt(small)
    tampered(small, head).write(path, nextn_predict_layers=1)
    weights, norms = small.tensors()
    shape = replace(small.shape(), blocks=3)
    theirs = small.formula()(np.array(tokens, np.int32), weights, norms, shape)
    demand_near(engine_logits(path, tokens), theirs, EXACT / 10)
    with GGUFFile(path) as file:
        [note] = model_info(file, Options()).notes
    assert note.endswith("tensors of multi-token-prediction blocks are unused")
    tampered(small, head).write(path)
    with pytest.raises(ModelError, match=r"tensor 'blk\.3\.nextn\.enorm\.weight'"):
        engine_logits(path, tokens)


def test_which_blocks_attend(tmp_path):
    """Those that a list does not name, whatever the interval; without either every fourth."""
    with GGUFFile(RECURRENT["Qwen 3.5"].write(tmp_path / "small.gguf")) as file:
        metadata = {**file.metadata, "qwen35.block_count": 8}
    listed = {"qwen35.attention.recurrent_layers": [False, True, *[False] * 6]}
    found = [{}, listed, {"qwen35.full_attention_interval": 3}]
    recurrent = [config_of(metadata | more, 70).recurrent for more in found]
    assert recurrent == [{0, 2, 4, 6}, {1}, {0, 1, 3, 4, 6, 7}]
    del metadata["qwen35.full_attention_interval"]
    assert config_of(metadata, 70).recurrent == {0, 1, 2, 4, 5, 6}


@pytest.fixture(scope="module", params=("Mamba", "Mamba 2", "LFM 2", "Qwen 3 Next", "Qwen 3.5"))
def path(request, tmp_path_factory):
    return RECURRENT[request.param].write(tmp_path_factory.mktemp("recurrent") / "small.gguf")


@pytest.fixture(scope="module")
def subject(path):
    """A model with room for the states after all tokens of a text."""
    found = subject_of(path, {**ROOM, "states": 32})
    yield found
    found.model.close()


@pytest.fixture
def engine(path):
    room = {**ROOM_FOR_DRAFTS, "states": 1 + LONGEST}
    with Engine.load(path, threads=1, context=CONTEXT, **room) as loaded_engine:
        yield loaded_engine


@pytest.mark.parametrize(
    "guesses", [{}, {"errors": 0.3}, {"errors": 1.0}, {"errors": 0.2, "siblings": 2}], ids=str
)
@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.9, "seed": 7}], ids=str)
def test_drafts_change_nothing(engine, guesses, sampled):
    """Rejected drafts leave no trace in the states."""
    vocab = engine.model.config.vocab
    asked = {**sampled, "max_tokens": 40, "ignore_eos": True, "logprobs": 3, "detokenize": False}
    plain = pieces(engine, TEXT, asked)
    with drafting(engine, Oracle(TEXT + ids(plain), vocab, **guesses)):
        for _ in range(2):
            engine.reset()
            drafted = pieces(engine, TEXT, asked)
            assert unmarked(drafted) == plain
            demand_settled(engine)
    assert any(piece.drafted for piece in drafted) == (guesses != {"errors": 1.0})


def test_drafts_are_no_longer_than_states_are_kept(path):
    """With room for three states at most two tokens are drafted."""
    with Engine.load(path, threads=1, context=CONTEXT, **ROOM_FOR_DRAFTS, states=3) as engine:
        asked = {"max_tokens": 20, "ignore_eos": True, "detokenize": False}
        plain = pieces(engine, TEXT, asked)
        with drafting(engine, Oracle(TEXT + ids(plain), engine.model.config.vocab)):
            engine.reset()
            assert unmarked(pieces(engine, TEXT, asked)) == plain
            assert len(engine.timings.speculation.drafted_at) == 2


def test_many_at_once(path):
    """Texts with a common beginning, submitted together, continue as alone."""
    asked = SamplingParams(temperature=0.9, seed=5, max_tokens=9, ignore_eos=True, logprobs=2, n=2)
    prompts = [TEXT, TEXT[:4], [*TEXT, 3, 4], [*TEXT[:5], 9], [7], TEXT]
    with Engine.load(path, threads=1, context=150, batch=5, sequences=6) as engine:
        alone = []
        for prompt in prompts:
            engine.reset()
            alone += [result.outputs for result in engine.generate([prompt], asked)]
        together = engine.generate(prompts, asked)
        assert [result.outputs for result in together] == alone


def test_sessions_go_on(path, tmp_path):
    """States are in the file: restored by an engine of another size, a text continues with the same
    tokens, and nothing is evaluated twice; saved again it is the same file."""
    asked = SamplingParams(temperature=1.1, seed=3, max_tokens=6, ignore_eos=True)
    talk, again = tmp_path / "talk.session", tmp_path / "again.session"
    with Engine.load(path, threads=1, context=64) as engine:
        begun = ids(list(engine.stream(TEXT, asked)))
        save(engine, talk)
        further = ids(list(engine.stream(TEXT + begun, asked, resume=True)))
    with Engine.load(path, threads=2, context=50, batch=4, sequences=2) as other:
        list(other.stream(range(3, 30), SamplingParams(n=2, max_tokens=5, seed=1)))
        assert restore(other, talk) == TEXT + begun
        save(other, again)
        assert again.read_bytes() == talk.read_bytes()
        assert ids(list(other.stream(TEXT + begun, asked, resume=True))) == further
        assert other.timings.prompt.tokens == 1


def test_sessions_where_few_states_are_kept(path, tmp_path):
    """An engine with fewer slots than the file has states continues from the last ones."""
    asked = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    talk = tmp_path / "talk.session"
    with Engine.load(path, threads=1, context=64, states=16) as engine:
        begun = ids(list(engine.stream(TEXT, asked)))
        save(engine, talk)
        further = ids(list(engine.stream(TEXT + begun, asked, resume=True)))
    with Engine.load(path, threads=1, context=64, states=1, sequences=1) as few:
        restore(few, talk)
        assert ids(list(few.stream(TEXT + begun, asked, resume=True))) == further
        assert few.timings.prompt.tokens == 1


def test_sessions_of_other_sizes_are_refused(path, tmp_path):
    with Engine.load(path, threads=1, context=64) as engine:
        list(engine.stream(TEXT, SamplingParams(max_tokens=3)))
        engine.model.states.popitem()
        save(engine, tmp_path / "talk.session")
    with Engine.load(path, threads=1) as other, pytest.raises(SessionError, match="bytes of cells"):
        restore(other, tmp_path / "talk.session")


# Room


@pytest.mark.parametrize("variant", [None, "scalar"])
def test_where_memory_is_scarce(path, variant):
    """Weights read from disk for every step give the same bits, packed by kernels or not."""
    with budgeted(path, 0, variant=variant) as model:
        whole = bits(model)
    with budgeted(path, wanted(path, variant=variant).least, variant=variant) as model:
        assert bits(model) == whole


def test_states_are_bounded(path):
    """The number of states does not grow with the text; a prompt that diverges from it is evaluated
    anew from the last common state."""
    with Engine.load(path, threads=1, context=200, states=4, sequences=2) as engine:
        asked = SamplingParams(temperature=0, max_tokens=120, ignore_eos=True, detokenize=False)
        text = TEXT + ids(list(engine.stream(TEXT, asked)))
        count = slots_for(2, 4)
        assert {len(states) for states in engine.model.states.values()} == {count}
        assert sum(cell in engine.model.cells.states for cell in range(200)) < count
        other, asked = [*text[:60], 3, 4], replace(asked, max_tokens=3, logprobs=3)
        parted = list(engine.stream(other, asked))
        assert engine.timings.prompt.tokens == len(other)
        engine.reset()
        assert list(engine.stream(other, asked)) == parted


def test_where_no_state_is_kept(path):
    """Continuing from there is refused, and the held text is unchanged."""
    with loaded(path, context=64, states=2, sequences=2) as model:
        alone = rows(model, TEXT * 2)[-1:].copy()
        model.cells.copy(0, 1, end=5)
        with pytest.raises(StateError, match="no state is kept where the text continues"):
            rows(model, [3], 5, sequence=1)
        assert model.cells.next_position(1) == 5
        assert model.cells.reach(0, 5) == 0
        model.cells.remove(0, begin=13)
        assert np.array_equal(rows(model, TEXT[-1:], 13), alone)


def test_tokens_between_are_refused(path):
    """A state depends on all earlier tokens: none can be inserted or removed."""
    with loaded(path, context=64, sequences=2) as model:
        rows(model, TEXT, 3)
        with pytest.raises(ValueError, match="position 1 of sequence 0 comes after later ones"):
            rows(model, [3], 1)
        with pytest.raises(ValueError, match="cannot be dropped without those after them"):
            model.cells.remove(0, 4, 6)


@pytest.mark.parametrize(
    ("name", "keys", "line"),
    [
        ("Mamba", {"ssm__dt_b_c_rms": True}, "norms of dt, B and C are not supported"),
        ("Mamba", {"ssm__conv_kernel": 1}, "ssm.conv_kernel"),
        ("Mamba 2", {"ssm__group_count": 3}, "heads divide channels, and groups divide heads"),
        ("LFM 2", {"attention__head_count_kv": [0, 2, 1]}, "differs between blocks"),
        ("LFM 2", {"attention__head_count_kv": [0, 2]}, "has 2 values for 3 blocks"),
        ("Qwen 3 Next", {"ssm__group_count": 4}, "heads divide channels, and groups divide heads"),
        ("Qwen 3 Next", {"ssm__state_size": 8}, "inner_size is 96: want 6 heads of state_size 8"),
        ("Qwen 3.5", {"attention__recurrent_layers": [True]}, "has 1 values for 3 blocks"),
        ("Qwen 3.5", {"rope__dimension_sections": [1, 1, 0, 9]}, "dimensions that turn 4 pairs"),
        ("Qwen 2 VL", {"rope__dimension_sections": [2, 3, 2, 1]}, "dimensions that turn 8 pairs"),
        ("Qwen 3.5", {"rope__dimension_sections": 3}, "dimension_sections is 3: want three"),
        ("Qwen 3.5", {"nextn_predict_layers": 3}, "block_count must be a count of at least 4"),
        ("LFM 2", {"shortconv__l_cache": 1}, "shortconv.l_cache must be a count of at least 2"),
    ],
)
def test_what_is_refused(name, keys, line, tmp_path):
    small = {**SUBJECTS, **RECURRENT}[name]
    path = small.write(tmp_path / "small.gguf")
    with GGUFFile(path) as file:
        metadata = dict(file.metadata)
    metadata |= {
        f"{small.architecture}.{key.replace('__', '.')}": value for key, value in keys.items()
    }
    with pytest.raises(ModelError, match=line):
        config_of(metadata, small.vocab)
