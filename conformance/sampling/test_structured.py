"""Structured output: always valid, alone, in batches and with drafts; invalid formats are
reported."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from conformance.support.models.spelling import BYTES, EOS, LETTERS, TEXT
from conformance.support.speculation.exactness import limit, surprise
from engine import Engine, Linear, PromptLookup, SamplingParams, StructuredOutputsParams
from engine.errors import EngineError, PackageError, SamplingError
from engine.sampling.structured_params import FORMATS

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", None]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
GBNF = 'root ::= "(" item ("," item){0,2} ")"\nitem ::= [a-c]+ | root\n'
LARK = 'start: "<" word (" " word)? ">"\nword: /[é-ü]{1,3}/\n'


def is_a_person(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "kind", "tags"]
        and re.fullmatch("[a-z]{1,6}", found["name"]) is not None
        and type(found["age"]) is int
        and 0 <= found["age"] <= 120
        and found["kind"] in ("cat", "dog", None)
        and 1 <= len(found["tags"]) <= 3
        and all(isinstance(tag, bool) for tag in found["tags"])
    )


def is_an_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def is_nested(text: str) -> bool:
    """By the rules of the GBNF grammar above, innermost first."""
    item = r"(?:[a-c]+|\x00)"
    while (shorter := re.sub(rf"\({item}(?:,{item}){{0,2}}\)", "\x00", text)) != text:
        text = shorter
    return text == "\x00"


@dataclass(frozen=True, slots=True)
class Format:
    asked: StructuredOutputsParams
    is_valid: Callable[[str], bool]


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


CHOICE = ["yes", "no", 'may"be\\', "yes, é"]
CODE = r"[a-c]{2,5}-\d{3}"
EXAMPLES = {
    "schema": Format(StructuredOutputsParams(json=PERSON), is_a_person),
    "object": Format(StructuredOutputsParams(json_object=True), is_an_object),
    "schema as text": Format(StructuredOutputsParams(json=json.dumps(PERSON)), is_a_person),
    "regex": Format(StructuredOutputsParams(regex=CODE), matches(CODE)),
    "choice": Format(StructuredOutputsParams(choice=CHOICE), CHOICE.__contains__),
    "gbnf": Format(StructuredOutputsParams(grammar=GBNF), is_nested),
    "lark": Format(StructuredOutputsParams(grammar=LARK), matches("<[é-ü]{1,3}( [é-ü]{1,3})?>")),
}  # fmt: skip
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 1},
    {"seed": 2, "temperature": 5.0, "logprobs": 2},
    {"seed": 3, "mirostat": 2},
    {"seed": 4, "top_p": 0.5, "min_p": 0.2, "xtc_probability": 0.9, "repetition_penalty": 1.5},
    {"seed": 5, "top_k": 1, "dry_multiplier": 2.0, "logit_bias": {LETTERS: 30.0}},
]
ENDS = {BYTES + ord(letter): 3.0 for letter in '")},'}  # else a random model seldom ends


@pytest.fixture(scope="module")
def engine(spelling) -> Iterator[Engine]:
    with Engine.load(spelling, threads=1, context=512, sequences=4, batch=32) as engine:
        yield engine


def params(form: str, sampling: dict[str, Any]) -> SamplingParams:
    bias = {"logit_bias": ENDS, **sampling}
    return SamplingParams(max_tokens=200, structured_outputs=EXAMPLES[form].asked, **bias)


@pytest.mark.parametrize("form", EXAMPLES)
def test_every_answer_is_valid(engine, form):
    """Answers are valid for any sampling, most complete; truncated ones are valid prefixes."""
    whole = set()
    asked = [replace(params(form, one), seed=seed) for one in SAMPLING for seed in range(5)]
    for result in engine.generate([TEXT] * len(asked), asked):
        assert result.error is None
        (output,) = result.outputs
        if output.finish_reason == "stop":
            assert EXAMPLES[form].is_valid(output.text), output.text
            whole.add(output.text)
        else:
            assert output.finish_reason == "length"
            assert form in ("gbnf", "object")  # alone may go on for ever
    assert len(whole) >= 3


def test_batches_and_drafts_change_no_bit(engine, spelling):
    """Logprobs included, answers keep their bits beside others of any format or none."""
    asked = [params(form, one) for form in EXAMPLES for one in SAMPLING]
    asked += [SamplingParams(max_tokens=20, **one) for one in SAMPLING]
    together = engine.generate([TEXT] * len(asked), asked)
    drafts = (PromptLookup(4, prompt_lookup_min=1), Linear(3, draft_p_min=0.0, adaptive=False))
    for settings in (None, *drafts):
        draft = spelling if isinstance(settings, Linear) else None
        room = {"threads": 1, "context": 512, "sequences": 4}
        with Engine.load(spelling, speculation=settings, draft=draft, **room) as other:
            drafted = 0
            for one, result in zip(asked, together, strict=True):
                assert other.generate(TEXT, one).outputs == result.outputs
                speculation = other.timings.speculation
                drafted += speculation.accepted if speculation else 0
            assert bool(drafted) == bool(settings)


SHORT = ["abc", "ac", "ba", "cab"]
LIKED = dict.fromkeys((EOS, *(LETTERS + 1 + i for i in range(3))), 12.0)  # of drafts: a to c


def distribution_of(engine: Engine, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], float]:
    """The probability of each derivation of one of SHORT, by the softmax after masking."""
    if path[-1:] == (EOS,):
        return {path: 1.0}
    constraint = engine.samplers.grammars.constraint(StructuredOutputsParams(choice=SHORT))
    for token in path:
        constraint.accept(token)
    logits = engine.logits([*engine.encode(TEXT), *path])[-1]
    constraint.ban(logits)
    shares = np.exp(logits.astype(np.float64) - logits.max())
    return {
        way: p * shares[token] / shares.sum()
        for token in np.flatnonzero(shares).tolist()
        for way, p in distribution_of(engine, (*path, token)).items()
    }


def test_sampled_drafts_keep_the_distribution(engine, spelling):
    """Verified by rejection against the masked distribution, answers are valid, and each derivation
    is as frequent as the formula says: a false alarm once in 10^9."""
    ways = distribution_of(engine)
    numbers = {way: number for number, way in enumerate(ways)}
    drawn = Linear(3, draft_p_min=0, adaptive=False, sampling=SamplingParams(logit_bias=LIKED))
    counts, drafted = np.zeros(len(ways), int), 0
    form = StructuredOutputsParams(choice=SHORT)
    with Engine.load(spelling, threads=1, context=64, speculation=drawn, draft=spelling) as other:
        for seed in range(1600):
            asked = SamplingParams(max_tokens=9, seed=seed, structured_outputs=form)
            (output,) = other.generate(TEXT, asked).outputs
            assert output.text in SHORT
            counts[numbers[output.token_ids]] += 1
            drafted += other.timings.speculation.accepted
        with pytest.raises(EngineError, match="verified for one prompt at a time: give one"):
            other.generate([TEXT] * 2, asked)
    assert drafted > 100
    assert surprise(counts, np.array(list(ways.values()))) <= limit(len(ways))


def test_a_real_vocabulary():
    """Tokens of several letters, which begin with a space inside a text."""
    with Engine.load("story", threads=1, context=256, sequences=4) as engine:
        pattern = r" [A-Z][a-z]{1,8} (sat|ran)( happily)?\."
        form = StructuredOutputsParams(regex=pattern)
        asked = [SamplingParams(max_tokens=60, seed=i, structured_outputs=form) for i in range(12)]
        found = [one.text for one in engine.generate(["The little cat"] * 12, asked)]
        assert all(re.fullmatch(pattern, text) for text in found), found
        assert len(set(found)) > 3
        many = [f"{7 * i} of them" for i in range(20_000)]
        form = StructuredOutputsParams(choice=many)
        asked = [SamplingParams(max_tokens=60, seed=i, structured_outputs=form) for i in range(12)]
        assert all(one.text in many for one in engine.generate(["The little cat"] * 12, asked))
        schema = StructuredOutputsParams(json=PERSON)
        asked = [SamplingParams(max_tokens=99, seed=i, structured_outputs=schema) for i in range(6)]
        results = engine.generate(["The little cat"] * 6, asked)
        assert all(
            is_a_person(one.text) for one in results if one.outputs[0].finish_reason == "stop"
        )
        assert sum(one.outputs[0].finish_reason == "stop" for one in results) >= 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"json": "[1"}, "json is not a JSON schema: Expecting ',' delimiter"),
        ({"json": "3"}, "json is 3: want an object, a schema"),
        ({"json": {"type": "strin"}}, "the JSON schema: Invalid type: strin"),
        ({"json": {"not": {}}}, "the JSON schema: Unimplemented keys"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "Unsatisfiable schema"),
        ({"json": False}, "structured_outputs has none"),
        ({"json": {"const": {1, 2}}}, "json is not a JSON schema"),
        ({"regex": "(a"}, "the regular expression: .*unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"[^\s\S]"}, "the regular expression: no text matches it$"),
        ({"regex": 3}, "regex is 3: want a text"),
        ({"choice": []}, "choice is .*: want texts that are not empty"),
        ({"choice": "yes"}, "choice is 'yes': want texts"),
        ({"choice": ["yes", ""]}, "want texts that are not empty"),
        ({"grammar": "root ::= foo"}, "the grammar: Rule 'foo' not found"),
        ({"grammar": 'root ::= "a'}, "the grammar: Unexpected end of input"),
        ({"grammar": 'x ::= "a"'}, "the grammar: No 'root' rule found"),
        ({"grammar": "start: x"}, "the grammar: .*unknown name"),
        ({"grammar": ""}, "the grammar: No 'root' rule found"),
        ({}, "has none: want one of json, regex, choice, grammar, json_object"),
        ({"regex": "a", "json_object": True}, "has regex and json_object: want one of"),
    ],
)  # fmt: skip
def test_invalid_formats_are_refused(engine, asked, message):
    """One line, before anything is evaluated; in a batch it is that prompt's error."""

    def ask() -> None:
        form = StructuredOutputsParams(**asked)
        engine.stream(TEXT, SamplingParams(structured_outputs=form))

    with pytest.raises(SamplingError, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)
    try:
        form = StructuredOutputsParams(**asked)
    except SamplingError:
        return
    good = params("choice", {"seed": 1})
    bad = SamplingParams(structured_outputs=form)
    first, second, third = engine.generate([TEXT] * 3, [good, bad, good])
    assert second.error == str(caught.value)
    assert first.outputs == third.outputs
    assert first.text in CHOICE


def test_formats_without_a_valid_token_end_in_one_line(engine):
    """Bans of all valid tokens end the answer with one line."""
    form = StructuredOutputsParams(choice=["yes"])
    asked = SamplingParams(structured_outputs=form, allowed_token_ids=[LETTERS + 1])
    with pytest.raises(SamplingError, match=r"^no token is left at token 13: all are banned$"):
        engine.generate(TEXT, asked)
    with pytest.raises(SamplingError, match="ignore_eos and structured_outputs exclude each other"):
        SamplingParams(structured_outputs=form, ignore_eos=True)
    with pytest.raises(SamplingError, match="structured_outputs is 'yes': want a Structured"):
        SamplingParams(structured_outputs="yes")


def test_response_formats():
    """OpenAI's response_format."""
    of = StructuredOutputsParams.of_response_format
    assert of({"type": "text"}) is None
    assert of({"type": "json_object"}) == StructuredOutputsParams(json_object=True)
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    assert of(schema) == StructuredOutputsParams(json=PERSON)
    for wrong in ({"type": "xml"}, {}, {"type": "json_schema"}, {**schema, "json_schema": {}}):
        with pytest.raises(EngineError, match=f"response_format.*({FORMATS[0]}|no schema)"):
            of(wrong)


def test_missing_package_names_what_to_install(engine, spelling, monkeypatch):
    """The error says what to install; nothing else needs it."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with Engine.load(spelling, threads=1, context=64) as other:
        assert other.generate(TEXT, SamplingParams(ignore_eos=True)).text
        with pytest.raises(PackageError, match=r"pip install 'assay\[structured\]'$"):
            other.generate(TEXT, params("choice", {}))
