"""Errors in stories: pronouns, counts, and facts to be remembered.

`violations` reads any text, so it can judge a model's stories. It reports what it understands and
ignores the rest; whether the grammar can write the text at all is a stricter test,
`grammar.derivations`.
"""

import re

from data.story import words

CHARACTERS = {c.name: c for c in words.CHILDREN + words.ANIMALS}
KINDS = {c.kind for c in CHARACTERS.values()}
PRONOUNS = {"she": "she", "her": "she", "he": "he", "his": "he", "him": "he"}
COUNTED = {noun.one: noun for noun in words.THINGS + words.TREATS + words.SEEDS}
COUNTED["seed"] = words.Noun("seed")

QUOTED = re.compile(r'"[^"]*"')
SENTENCE_END = re.compile(r'(?<=[.!?])"?\s+(?=["A-Z])')
WORD = re.compile(r"[A-Za-z]+")

_NUMBER = f"({'|'.join(words.NUMBERS)})"
START = re.compile(rf"\b(?:found|baked|planted) {_NUMBER} (?!more)(\w+)")
LESS = re.compile(rf"\b(?:gave {_NUMBER} (?:of them )?to|ate {_NUMBER})\b")
MORE = re.compile(rf"\b(?:found|planted) {_NUMBER} more\b")
RESULT = re.compile(rf"\b(?:had|made|were|count|came,) {_NUMBER} (\w+)")
KEEPSAKE = re.compile(
    rf"\b({'|'.join(c.one for c in words.COLOURS)}) ({'|'.join(t.one for t in words.TOYS)})\b"
)
PACKED = re.compile(r"packed an? (\w+), an? (\w+) and an? (\w+)")
NEEDED = re.compile(r"(?:I have|But \w+ had) an? (\w+)")


def violations(text: str) -> list[str]:
    """The errors found in a story, each a line that begins with its kind."""
    return [*_pronouns(text), *_kinds(text), *_counts(text), *_memory(text)]


def _pronouns(text: str) -> list[str]:
    """A pronoun means the first character named before it in its sentence, or else the hero."""
    found = []
    hero = None
    for sentence in SENTENCE_END.split(QUOTED.sub('""', text)):
        named = None
        for word in WORD.findall(sentence):
            if word in CHARACTERS:
                named = named or CHARACTERS[word]
                hero = hero or named
            elif word.lower() in PRONOUNS:
                owner = named or hero
                if owner is None:
                    found.append(f"pronoun: {word!r} before anyone is named")
                elif PRONOUNS[word.lower()] != owner.they:
                    found.append(f"pronoun: {word!r} for {owner.name} in {sentence!r}")
    return found if hero else [*found, "pronoun: no known character"]


def _kinds(text: str) -> list[str]:
    """A girl has a girl's name, a fox a fox's."""
    pairs = [(name, kind) for kind, name in re.findall(r"(\w+) named (\w+)", text)]
    pairs += re.findall(r"(\w+) was an? \w+ (\w+) who lived", text)
    return [
        f"kind: {name} is no {kind}"
        for name, kind in pairs
        if kind in KINDS and name in CHARACTERS and CHARACTERS[name].kind != kind
    ]


def _counts(text: str) -> list[str]:
    """Follow the number of things through the story; nouns must agree with their numbers."""
    found = []
    have: int | None = None
    for sentence in SENTENCE_END.split(text):
        for number, noun in START.findall(sentence) + RESULT.findall(sentence):
            if noun in _forms() and not _agree(number, noun):
                found.append(f"count: {number} {noun}")
        if start := START.search(sentence):
            have = words.NUMBERS.index(start[1])
        if have is None:
            continue
        if more := MORE.search(sentence):
            have += words.NUMBERS.index(more[1])
        if less := LESS.search(sentence):
            have -= words.NUMBERS.index(less[1] or less[2])
        result = RESULT.search(sentence)
        if result and words.NUMBERS.index(result[1]) != have:
            found.append(f"count: {result[1]}, not {have}, in {sentence!r}")
    return found


def _forms() -> set[str]:
    return {form for noun in COUNTED.values() for form in (noun.one, format(noun, "s"))}


def _agree(number: str, written: str) -> bool:
    """Whether "one apple" or "two apples" is right; a kind of seeds may stand for the seeds."""
    if written in COUNTED:
        return number == "one" or any(written == seed.one for seed in words.SEEDS)
    return number != "one"


def _memory(text: str) -> list[str]:
    """The toy keeps its colour; what helps on a trip was packed; animals say what they say."""
    found = []
    toys = {" ".join(pair) for pair in KEEPSAKE.findall(text)}
    if len(toys) > 1:
        found.append(f"memory: one toy, but {' and '.join(sorted(toys))}")
    if packed := PACKED.search(text):
        needed = NEEDED.search(text, packed.end())
        if needed and needed[1] not in packed.groups():
            found.append(f"memory: {needed[1]} was not packed")
    sounds = {beast.one: beast.sound for beast in words.BEASTS}
    for beast, sound in re.findall(r"an? (\w+) says ([\w-]+)", text):
        if sounds.get(beast, sound) != sound:
            found.append(f"memory: a {beast} does not say {sound}")
    heard = re.search(r'It went "([\w-]+),', text)
    seen = re.search(r"(?:It was only|There stood) an? (\w+)", text)
    if heard and seen and sounds.get(seen[1], heard[1]) != heard[1]:
        found.append(f"memory: a {seen[1]} does not say {heard[1]}")
    first = re.search(r"(\w+) came first", text)
    winner = re.search(r"So (\w+) won the", text)
    if first and winner and first[1] != winner[1]:
        found.append(f"memory: {first[1]} came first, {winner[1]} won")
    return found
