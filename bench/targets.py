"""What the engine is to reach with two threads, by model and format: goals of the speed card.

A figure is a ratio, named as the card names it (bench/report/card.py). Models are of random weights
in TinyLlama-1.1B's shape, from `data.random_model`, but for the embedded one, where overhead
decides; they are known by their file's name without its format, tinyllama-q4_0 as tinyllama.
"""

from dataclasses import dataclass

TINY, STORY = "tinyllama", "story"


@dataclass(frozen=True, slots=True)
class Target:
    """The figure must be at least `goal`, or, with `most`, at most; `format` "" is any."""

    figure: str
    goal: float
    model: str = TINY
    format: str = ""
    most: bool = False

    def met(self, value: float) -> bool:
        return value <= self.goal if self.most else value >= self.goal


TARGETS = (
    Target("tg128 ÷ llama.cpp", 1.05, format="F16"),
    Target("tg128 ÷ llama.cpp", 1.2, format="Q8_0"),
    Target("tg128 ÷ llama.cpp", 1.3, format="Q4_0"),
    Target("tg128 ÷ llama.cpp", 1.0, STORY),
    Target("pp512 ÷ llama.cpp", 1.0, format="F16"),
    Target("pp512 ÷ llama.cpp", 2.0, format="Q8_0"),
    Target("pp512 ÷ llama.cpp", 2.0, format="Q4_0"),
    Target("pp512 fast ÷ llama.cpp", 2.0, format="F16"),
    Target("tg32 @ d4096 ÷ d128, ÷ the same of llama.cpp", 1.0),
    Target("8 sequences ÷ 1", 4.0),
    Target("pp512 on 2 threads ÷ 1", 1.8),
    Target("weights streamed ÷ reading them alone", 0.85, format="Q8_0"),
    Target("weights streamed ÷ reading them alone", 0.85, format="Q4_0"),
    Target("peak memory ÷ (file + cache + 400 MB)", 1.0, most=True),
)


def targets(model: str, format: str) -> list[Target]:
    """The goals of a model, by its name without the format, in a format."""
    return [t for t in TARGETS if t.model == model and t.format in ("", format)]


def target(figure: str, model: str, format: str) -> Target | None:
    """The goal of a model's figure, if it has one."""
    return next((t for t in targets(model, format) if t.figure == figure), None)
