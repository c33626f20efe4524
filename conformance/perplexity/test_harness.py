"""Assay as a model of lm-evaluation-harness, live; skipped without that package."""

import importlib
import runpy
import sys
from types import SimpleNamespace

import pytest

import engine
from engine import Engine, PromptError, SamplingParams
from engine.errors import PackageError
from engine.generation.scoring import tokenize_pair

PROMPT = "Once upon a time, there was"
BORDERS = [
    (PROMPT, " a little girl"), ("Once upon a ", "time"), ("Once  ", " upon"), ("On", "ce upon"),
    ("The dog\n", "ran"), ("The cat sa", "t. They"), ("", "Once upon a time"),
]  # fmt: skip


@pytest.fixture(name="lm_eval", scope="module")
def _lm_eval():
    return pytest.importorskip("lm_eval", reason="lm-eval is not installed: make test-peers")


@pytest.fixture(name="harness")
def _harness(lm_eval, story):
    from engine.harness import AssayLM

    return AssayLM(story)


def test_without_the_package(monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "engine.harness", raising=False)
    with pytest.raises(PackageError, match=r"pip install 'assay\[lm-eval\]'"):
        importlib.import_module("engine.harness")
    with pytest.raises(SystemExit, match="assay: lm-evaluation-harness is not installed"):
        runpy.run_path(f"{engine.__path__[0]}/harness.py", run_name="__main__")


def request(*given):
    return [SimpleNamespace(args=args) for args in given]


def test_boundaries_equal_the_harness(harness, story):
    """Pairs are tokenized as by the package, also where a token crosses the border."""
    seen = []
    harness._loglikelihood_tokens = lambda pairs, **_: seen.extend(pairs)
    harness.loglikelihood(request(*BORDERS), disable_tqdm=True)
    ours = [tokenize_pair(story.tokenizer, *pair) for pair in BORDERS]
    assert ours == [(context, wanted) for _, context, wanted in seen]


def test_scores_equal_the_engines(harness, story):
    answers = harness.loglikelihood(request(*BORDERS), disable_tqdm=True)
    scores = [story.score(*pair) for pair in BORDERS]
    assert answers == [(score.cumulative_logprob, score.is_greedy) for score in scores]


@pytest.mark.usefixtures("lm_eval")
def test_rolling_windows_of_long_texts(story):
    """Each token of a text is predicted once, from as many before it as the context holds."""
    from engine.harness import AssayLM

    text = "The dog ran to the park. " * 5
    with Engine.load("story", threads=1, context=16) as short:
        (total,) = AssayLM(short).loglikelihood_rolling(request((text,)), disable_tqdm=True)
        tokens = AssayLM(short).tok_encode(text)
    begin = story.tokenizer.bos_id
    expected = 0.0
    for first in range(0, len(tokens), 16):
        wanted = tokens[first : first + 16]
        before = [begin, *tokens][max(0, first + len(wanted) - 16) : first + 1]
        expected += story.score(before, wanted).cumulative_logprob
    assert total == pytest.approx(expected, rel=1e-13)


def test_generate_until(harness, story):
    """Answers end before a string of `until`; they are the engine's, in the order of requests."""
    given = [(PROMPT, {"until": ["."], "max_gen_toks": 12}), ("The dog", {"max_gen_toks": 5})]
    answers = harness.generate_until(request(*given), disable_tqdm=True)
    first = story.generate(PROMPT, SamplingParams(max_tokens=12, temperature=0, stop="."))
    second = story.generate("The dog", SamplingParams(max_tokens=5, temperature=0))
    assert answers == [first.text, second.text]
    with pytest.raises(PromptError, match="generation_kwargs has 'num_beams'"):
        harness.generate_until(request(("a", {"num_beams": 2})))


@pytest.mark.usefixtures("harness")
def test_the_evaluator_runs_a_task(lm_eval, tmp_path, monkeypatch):
    """The package's own evaluator, on a task of local data, gets the model from its registry and
    finds the answers of the best scores."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"text": "Once upon a", "label": 1}\n{"text": "One day, a little", "label": 0}\n'
    )
    task = {
        "task": "stories",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(rows)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "text",
        "doc_to_target": "label",
        "doc_to_choice": ["girl", "time"],
        "metric_list": [{"metric": "acc"}],
    }
    found = lm_eval.simple_evaluate(
        model="assay",
        model_args="model=story,threads=1",
        tasks=[task],
        bootstrap_iters=0,
        batch_size=2,
        device="cuda:0",  # as its program has it where nobody says
    )
    assert found["results"]["stories"]["acc,none"] == 1.0
