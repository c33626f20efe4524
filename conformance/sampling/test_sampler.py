"""The sampler: its chain compared with the references', its state, bans and errors."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from engine.sampling.chain import chain, needed_ops
from engine.sampling.params import SamplingError, SamplingParams
from engine.sampling.sampler import Argmax, Sampler
from kernels.call import Run
from reference.op import Arguments, Array
from reference.table import OPS

VOCAB, EOG = 64, (2, 3)
EVERYTHING = SamplingParams(
    logit_bias={5: 1.5, 9: -math.inf},
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.2,
    dry_multiplier=0.7,
    dry_sequence_breakers=[7],
    top_n_sigma=2.5,
    top_k=20,
    typical_p=0.95,
    top_p=0.9,
    min_p=0.02,
    xtc_probability=0.5,
    xtc_threshold=0.1,
    temperature=0.8,
    seed=11,
)


MOSTLY_FILTERS = replace(EVERYTHING, dry_multiplier=2.5, dry_allowed_length=1, min_p=0.12)
MOSTLY_EDITS = replace(
    MOSTLY_FILTERS, repetition_penalty=1.5, dry_multiplier=1, dry_allowed_length=0, top_n_sigma=1.2
)


def logits_at(step: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, step]).normal(0, 2, VOCAB).astype(np.float32)


GREEDY = SamplingParams(temperature=0)
TOP = int(logits_at(0).argmax())


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        replace(GREEDY, logprobs=1),
        replace(GREEDY, logit_bias={TOP: -math.inf}),
        replace(GREEDY, repetition_penalty=1.5),
        replace(GREEDY, allowed_token_ids=[1, 2]),
        replace(GREEDY, bad_words=[[TOP]]),
        replace(GREEDY, logits_processors=[lambda _, logits: -logits]),
    ],
)
def test_argmax_suffices_only_for_greedy_parameters(params):
    """Parameters that may choose another token, or return more, need logits."""
    assert Sampler(params, VOCAB, EOG).argmax_bans is None


def test_argmax_respects_banned_end_tokens():
    """An ignored end never may, and before min_tokens stop tokens must not, either."""
    endless = Sampler(replace(GREEDY, ignore_eos=True), VOCAB, EOG)
    long = Sampler(replace(GREEDY, min_tokens=1, stop_token_ids=[TOP]), VOCAB, EOG)
    assert (endless.argmax_bans, long.argmax_bans) == (frozenset(EOG), frozenset([*EOG, TOP]))
    for sampler in (endless, long):
        sampler.accept(1)
    assert (endless.argmax_bans, long.argmax_bans) == (frozenset(EOG), frozenset())


def test_argmax_equals_greedy_sampling():
    """They have the same log-probability, once min_tokens no longer bans the end."""
    logits = logits_at(0)
    exact = logits.astype(np.float64)
    found = Argmax(TOP, float(logits[TOP] - np.log(np.exp(exact).sum())))
    sampler = Sampler(replace(GREEDY, min_tokens=1), VOCAB, EOG)
    sampler.accept(1)
    assert sampler.argmax_bans == frozenset()
    expected, got = sampler.sample(logits), sampler.argmax(found)
    assert (got.token, got.top) == (expected.token, expected.top)
    (error,) = OPS["log_sum_exp"].bound({"logits": logits}, {})["out"]
    assert got.logprob == pytest.approx(expected.logprob, abs=float(error))


def text_of(sampler: Sampler, count: int, seed: int = 0, start: int = 0) -> list[int]:
    """The sampler's tokens for a fixed sequence of logits."""
    tokens = []
    for step in range(start, start + count):
        tokens.append(sampler.sample(logits_at(step, seed)).token)
        sampler.accept(tokens[-1])
    return tokens


def from_reference(op: str) -> Callable[[Arguments, Mapping[str, Array]], Run]:
    """The op's reference in place of a kernel."""

    def bind(inputs: Arguments, outputs: Mapping[str, Array]) -> Run:
        def run(n_threads: int = 1, order: Sequence[int] = (0,)) -> None:
            for name, value in OPS[op].expected(inputs).items():
                outputs[name][...] = value

        return run

    return bind


def oracle(params: SamplingParams, prompt: list[int], steps: int) -> list[int]:
    """llama.cpp's chain as a list of formulas, over Python lists and NumPy's own generator."""
    p, history = params, list(prompt)
    random = np.random.Generator(np.random.PCG64(p.seed))
    formula = {name: op.reference for name, op in OPS.items()}
    for step in range(steps):
        x = logits_at(step)
        repeated = np.bincount(history, minlength=VOCAB)
        counts = np.bincount(history[len(prompt) :], minlength=VOCAB)
        ids, biases = np.array([5, 9]), np.array([1.5, -math.inf])
        context, breakers = np.array(history[-64:]), np.array([7])
        penalty = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty)
        stages: list[tuple[str, tuple[Any, ...]]] = [
            ("logit_bias", (ids, biases)),
            ("penalties", (repeated, counts, *penalty)),
            ("dry", (context, breakers, p.dry_multiplier, p.dry_base, p.dry_allowed_length)),
            ("top_n_sigma", (p.top_n_sigma,)),
            ("top_k", (p.top_k,)),
            ("typical", (p.typical_p,)),
            ("top_p", (p.top_p,)),
            ("min_p", (p.min_p,)),
            ("xtc", (p.xtc_probability, p.xtc_threshold, random.random())),
            ("temperature", (p.temperature,)),
        ]
        for name, arguments in stages:
            x = formula[name](x, *arguments).astype(np.float32)
        history.append(int(formula["draw"](x, random.random())[0]))
    return history[len(prompt) :]


@pytest.mark.parametrize("params", [EVERYTHING, MOSTLY_FILTERS, MOSTLY_EDITS])
def test_the_chain_equals_llama_cpps(params):
    """With all stages on, the sampler equals the formulas in llama.cpp's order."""
    prompt = [4, 5, 6, 4, 5]
    text = text_of(Sampler(params, VOCAB, EOG, prompt=prompt), 80)
    assert text == oracle(params, prompt, 80)
    assert len(set(text)) > 20  # else the order would hardly matter
    assert chain(params) == (
        *("logit_bias", "penalties", "dry", "top_n_sigma", "top_k", "typical"),
        *("top_p", "min_p", "xtc", "temperature", "draw"),
    )


@pytest.mark.parametrize(
    ("options", "ops"),
    [
        ({}, ("draw",)),
        ({"top_k": -1, "top_p": 1.0, "min_p": 0.0}, ("draw",)),
        ({"temperature": 0.0, "top_k": 40, "xtc_probability": 1.0}, ("greedy",)),
        ({"temperature": 9e-6, "repetition_penalty": 1.1}, ("penalties", "greedy")),
        ({"repetition_penalty": 1.1, "penalty_last_n": 0}, ("draw",)),
        ({"dynatemp_range": 0.3}, ("dynamic_temperature", "draw")),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.6}, ("draw",)),
        (
            {"mirostat": 2, "top_k": 5, "logit_bias": {1: 1.0}, "temperature": 0.7},
            ("logit_bias", "temperature", "mirostat_v2", "draw"),
        ),
        ({"mirostat": 1}, ("mirostat_v1", "draw")),
    ],
)
def test_disabled_stages_do_not_run(options, ops):
    """Defaults sample from the plain distribution; each setting adds its own stage and no other."""
    assert chain(SamplingParams(**options)) == ops


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.9},
        {"mirostat": 1},
        {"mirostat": 2},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        {"dynatemp_range": 0.5, "penalty_last_n": 3, "repetition_penalty": 1.5},
    ],
)
def test_a_seed_decides_the_text(options):
    """The same seed gives the same tokens, another one others, and so do reference and kernels."""
    params = SamplingParams(seed=5, **options)
    text = text_of(Sampler(params, VOCAB), 40)
    assert text == text_of(Sampler(params, VOCAB), 40)
    assert text != text_of(Sampler(SamplingParams(seed=6, **options), VOCAB), 40)
    formulas = {op: from_reference(op) for op in needed_ops(params)}
    assert text == text_of(Sampler(params, VOCAB, kernels=formulas), 40)


def test_without_a_seed_texts_differ():
    """seed=None uses the system's entropy."""
    assert len({tuple(text_of(Sampler(SamplingParams(), VOCAB), 12)) for _ in range(4)}) > 1


@pytest.mark.parametrize("drawn", [0, 10])
@pytest.mark.parametrize("options", [{}, {"mirostat": 1}, {"mirostat": 2}, {"penalty_last_n": 4}])
def test_restored_samplers_continue_token_for_token(options, drawn):
    """State through JSON into a new sampler continues the text token for token."""
    params = SamplingParams(seed=3, repetition_penalty=1.3, frequency_penalty=2.0, **options)
    first = Sampler(params, VOCAB, prompt=[1, 1, 5])
    text_of(first, drawn)
    state = json.loads(json.dumps(first.state()))
    second = Sampler(params, VOCAB)
    second.restore(state)
    assert second.state() == first.state()
    assert text_of(second, 20, start=drawn) == text_of(first, 20, start=drawn)
    with pytest.raises(SamplingError, match="not a sampler state: 'history'"):
        second.restore({})


@given(st.integers(0, 2**32), st.integers(0, 10))
def test_logprobs_are_those_of_the_raw_logits(seed, wanted):
    """For any chain, logprob and top are the log-softmax of the unmodified logits."""
    logits = logits_at(0, seed)
    params = SamplingParams(logprobs=wanted, temperature=0.3, top_k=2, logit_bias={1: 50}, seed=0)
    sampled = Sampler(params, VOCAB).sample(logits)
    exact = logits.astype(np.float64) - logits.max()
    exact -= np.log(np.exp(exact).sum())
    assert sampled.logprob == pytest.approx(exact[sampled.token], abs=1e-5)
    best = np.argsort(-logits, kind="stable")[:wanted]
    assert [token for token, _ in sampled.top] == best.tolist()
    assert_allclose([p for _, p in sampled.top], exact[[t for t, _ in sampled.top]], atol=1e-5)


def test_logits_are_not_written_to():
    """The caller's logits are unchanged, even read-only ones."""
    logits = logits_at(0)
    logits.flags.writeable = False
    before = logits.copy()
    Sampler(EVERYTHING, VOCAB, EOG).sample(logits)
    assert logits.tobytes() == before.tobytes()


def test_the_end_is_banned_until_min_tokens():
    """End and stop ids are banned until min_tokens tokens, not counting the prompt."""
    logits = np.full(VOCAB, -5, np.float32)
    logits[[2, 8, 9]] = 5, 4, 1
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[8])
    sampler = Sampler(params, VOCAB, EOG, prompt=[1] * 9)
    text = []
    for _ in range(4):
        text.append(sampler.sample(logits).token)
        sampler.accept(text[-1])
    assert text == [9, 9, 2, 2]


def test_bans_and_allowances():
    """ignore_eos bans the end for good; a whitelist bans all else; bad words ban their last token
    after their first ones only."""
    logits = np.zeros(VOCAB, np.float32)
    logits[[2, 5, 6]] = 3, 2, 1

    def greedy(said: Sequence[int] = (), **options: Any) -> int:
        sampler = Sampler(SamplingParams(temperature=0, **options), VOCAB, EOG)
        for token in said:
            sampler.accept(token)
        return sampler.sample(logits).token

    assert greedy() == 2
    assert greedy(ignore_eos=True) == 5
    assert greedy(allowed_token_ids=[6, 40]) == 6
    assert greedy(bad_words=[[2], [9, 5]]) == 5
    assert greedy([9], bad_words=[[2], [9, 5]]) == 6
    assert greedy([9, 1], bad_words=[[2], [9, 5]]) == 5
    assert greedy(logit_bias={2: -math.inf, 6: 1.5}) == 6


def test_ranges_of_penalties():
    """By default repetition includes the prompt and presence does not; a window forgets."""

    def counts(last: int | None) -> tuple[list[int], list[int]]:
        sampler = Sampler(SamplingParams(penalty_last_n=last), 4, prompt=[0, 1])
        for token in (1, 2):
            sampler.accept(token)
        return sampler._memory.repeated.tolist(), sampler._memory.counts.tolist()

    assert counts(None) == ([1, 2, 1, 0], [0, 1, 1, 0])
    assert counts(-1) == ([1, 2, 1, 0], [1, 2, 1, 0])
    assert counts(2) == ([0, 1, 1, 0], [0, 1, 1, 0])


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_reaches_tau(version):
    """Over many tokens the mean surprise approaches tau."""
    vocab, tau = 1000, 3.0
    logits = (-1.1 * np.log(np.arange(1, vocab + 1))).astype(np.float32)
    params = SamplingParams(mirostat=version, mirostat_tau=tau, seed=1)
    sampler = Sampler(params, vocab)
    mus = []
    for _ in range(600):
        sampler.sample(logits)
        mus.append(sampler.state()["mu"])
    surprise = tau - np.diff(mus) / params.mirostat_eta
    assert abs(surprise[200:].mean() - tau) < 0.3


@pytest.mark.parametrize(
    ("logits", "options", "message"),
    [
        ([0, np.nan, 0, np.nan], {}, "logits are NaN at token 1: 2 of 4, first that of id 1"),
        ([0, np.inf, 0, 0], {}, "logits are inf at token 1: 1 of 4, first that of id 1"),
        ([-np.inf] * 4, {}, "logits are -inf at token 1: all 4 of them"),
        ([0, 1], {}, r"want logits \[4\], got \[2\]"),
        ([0, 0, -np.inf, 0], {"allowed_token_ids": [2]}, "no token is left at token 1"),
        ([1, 1, -np.inf, 1], {"allowed_token_ids": [2], "temperature": 0}, "no token is left"),
        ([0] * 4, {"logit_bias": dict.fromkeys(range(4), -math.inf)}, "no token is left"),
        ([0] * 4, {"logits_processors": [lambda _, x: x * np.float32(np.nan)]}, "logits are NaN"),
    ],
)
def test_logits_without_a_valid_token_are_refused(logits, options, message):
    """NaN, infinities, wrong sizes and total bans are one plain error."""
    sampler = Sampler(SamplingParams(**options), 4, prompt=[0])
    for ask in (sampler.sample, sampler.distribution):
        with pytest.raises(SamplingError, match=message):
            ask(np.array(logits, np.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature is -1: want a number from 0 to 1e.06"),
        ({"temperature": math.nan}, "temperature is nan: want a number from 0 to 1e.06"),
        ({"temperature": "hot"}, "temperature is 'hot': want a number"),
        ({"temperature": None}, "temperature is None: want a number"),
        ({"top_p": 1.5}, "top_p is 1.5: want a number from 0 to 1, but not 0"),
        ({"top_p": 0}, "top_p is 0: want a number from 0 to 1, but not 0"),
        ({"min_p": -0.1}, "min_p is -0.1: want a number from 0 to 1"),
        ({"top_k": -2}, "top_k is -2: want a whole number from -1 up"),
        ({"top_k": 1.5}, "top_k is 1.5: want a whole number"),
        ({"n": 0}, "n is 0: want a whole number from 1 up"),
        ({"n": True}, "n is True: want a whole number"),
        ({"max_tokens": 0}, "max_tokens is 0: want a whole number from 1 up"),
        ({"min_tokens": 20}, "min_tokens is 20: it may not exceed max_tokens, 16"),
        ({"presence_penalty": 3}, "presence_penalty is 3: want a number from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0: want a number from 1e-06 to 1e.06"),
        ({"mirostat": 3}, "mirostat is 3: want a whole number from 0 to 2"),
        ({"seed": -1}, "seed is -1: want a whole number from 0"),
        ({"stop": ["", "x"]}, "stop holds '': want texts that are not empty"),
        ({"stop": "x", "detokenize": False}, "stop is set: it needs detokenize"),
        ({"ignore_eos": 1}, "ignore_eos is 1: want True or False"),
        ({"stop_token_ids": [-1]}, "stop_token_ids holds -1: want token ids, from 0 up"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"bad_words": [[]]}, "bad_words holds an empty word"),
        ({"logit_bias": {3: math.nan}}, "logit_bias of token 3 is nan: want a number"),
        ({"logits_processors": [3]}, "logits_processors holds 3: want callables"),
        ({"order": "llama"}, r"order is 'llama': want llama\.cpp or vllm"),
        ({"best_of": 1}, "best_of"),  # what is not taken is no less an error
        ({"guided_decoding": 1}, "guided_decoding"),
        ({"top_q": 1}, "top_q"),
    ],
)
def test_bad_parameters_are_named(options, message):
    """One line says which field, its value, and what is allowed."""
    with pytest.raises((SamplingError, TypeError), match=message) as caught:
        SamplingParams(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_token_ids": [99]}, "stop_token_ids holds 99: the vocabulary has 64 tokens"),
        ({"logit_bias": {64: 1}}, "logit_bias holds 64: the vocabulary has 64"),
        ({"bad_words": ["text"]}, "takes token ids, not the text 'text': use params.in_tokens"),
        ({"dry_multiplier": 1.0}, "takes token ids, not the text"),
    ],
)
def test_unknown_token_ids_are_refused(options, message):
    """Ids outside the vocabulary and texts are refused when the sampler is made."""
    with pytest.raises(SamplingError, match=message):
        Sampler(SamplingParams(**options), VOCAB)


def test_texts_in_parameters_are_tokenised():
    """in_tokens tokenises bad words with and without a space, and breakers by their last token."""

    def encode(text: str) -> list[int]:
        return [ord(character) % VOCAB for character in text]

    params = SamplingParams(bad_words=["ab", [7]], dry_sequence_breakers=["xy", 5])
    spelt = params.in_tokens(encode)
    assert spelt.bad_words == ((33, 34), (32, 33, 34), (7,))
    assert spelt.dry_sequence_breakers == (ord("y") % VOCAB, 5)
    Sampler(spelt, VOCAB)


DRAWN: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0, "logit_bias": {3: 2.0}},
    {"temperature": 0.5, "top_k": 9},
    {"mirostat": 1},
    {"mirostat": 2, "temperature": 1.4},
    {"dynatemp_range": 0.5, "typical_p": 0.8, "min_tokens": 9},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"allowed_token_ids": [7]},
]


@pytest.mark.parametrize("params", [EVERYTHING, *(SamplingParams(seed=7, **o) for o in DRAWN)])
def test_distribution_and_draw_equal_sample(params):
    """With the same random numbers they give `sample`'s tokens, log-probabilities and state."""
    one, two = (Sampler(params, VOCAB, EOG, prompt=[4, 5, 4]) for _ in range(2))
    for step in range(200):
        sampled, p = one.sample(logits_at(step)), two.distribution(logits_at(step))
        greedy = params.temperature == 0
        token = int(p.argmax()) if greedy else two.draw(p)
        assert not greedy or p[token] == p.sum() == 1
        assert two.result(token) == sampled
        one.accept(token)
        two.accept(token)
        assert one.state() == two.state()


@pytest.mark.parametrize("params", [EVERYTHING, MOSTLY_FILTERS, SamplingParams(mirostat=2, seed=1)])
def test_distributions_equal_the_chains_softmax(params):
    """They are the softmax of the chain's result, float64, and sum to one."""
    sampler = Sampler(params, VOCAB, EOG)
    cut = 0
    for step in range(20):
        p = sampler.distribution(logits_at(step))
        left = sampler._chain.final.astype(np.float64)
        powers = np.exp(left - left.max())
        assert p.dtype == np.float64
        assert ((p == 0) == np.isneginf(left)).all()
        assert_allclose(p, powers / powers.sum(), rtol=1e-5)
        assert p.sum() == pytest.approx(1, abs=1e-14)
        sampler.accept(sampler.result(sampler.draw(p)).token)
        cut += int((p == 0).sum())
    assert cut > 20


def test_a_missing_kernel_is_named():
    """A sampler with given kernels adds none; a missing one is reported on use."""
    with pytest.raises(SamplingError, match="need a kernel of top_p, none was given"):
        Sampler(SamplingParams(top_p=0.5), VOCAB, kernels={"draw": from_reference("draw")})
    params = SamplingParams()
    kernels = {op: from_reference(op) for op in needed_ops(params)}
    sampler = Sampler(params, VOCAB, kernels=kernels)
    sampler.sample(logits_at(0))
    with pytest.raises(SamplingError, match="need a kernel of softmax, none was given"):
        sampler.distribution(logits_at(0))
    assert {"softmax", "pick"} == {*needed_ops(params, distributions=True)} - {*kernels}


def vllm_probabilities(logits: Array, p: SamplingParams) -> Array:
    """vLLM's order: logits are divided by the temperature; min_p compares with the largest
    probability; top_k keeps those at least as large as the k-th; top_p sorts ascending and drops
    the first 1 - p of the sum, but never the last token."""
    x = logits.astype(np.float64) / p.temperature
    share = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    x[share < p.min_p * share.max()] = -np.inf
    x[x < np.sort(x)[-p.top_k]] = -np.inf
    upwards = np.argsort(x, kind="stable")
    mass = np.exp(x[upwards] - x.max())
    drop = np.cumsum(mass / mass.sum()) <= 1 - p.top_p
    drop[-1] = False
    x[upwards[drop]] = -np.inf
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


@pytest.mark.parametrize("temperature", [0.4, 1.7, 5.0])
def test_vllms_order(temperature):
    """The distribution is vLLM's: filters apply after the temperature."""
    asked = SamplingParams(
        temperature=temperature, top_k=30, top_p=0.8, min_p=0.02, seed=1, order="vllm"
    )
    ours = replace(asked, order="llama.cpp")
    sizes = []
    for step in range(60):
        logits = logits_at(step)
        found, other = (Sampler(p, VOCAB, EOG).distribution(logits) for p in (asked, ours))
        assert_allclose(found, vllm_probabilities(logits, asked), rtol=1e-4)
        sizes.append((np.count_nonzero(found), np.count_nonzero(other)))
    assert sum(one != other for one, other in sizes) > 30


def test_vllms_ignore_eos():
    """With ignore_eos the end may be sampled, as any token."""
    asked = SamplingParams(temperature=0, ignore_eos=True, order="vllm", logit_bias={EOG[0]: 99.0})
    assert Sampler(asked, VOCAB, EOG).sample(logits_at(0)).token == EOG[0]
    ours = replace(asked, order="llama.cpp")
    assert Sampler(ours, VOCAB, EOG).sample(logits_at(0)).token != EOG[0]
    assert Sampler(replace(asked, logit_bias=None), VOCAB, EOG).argmax_bans == frozenset()
