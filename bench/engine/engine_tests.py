"""What an engine is timed at, named as llama-bench names its tests."""

from dataclasses import dataclass

KINDS = ("pp", "tg", "batched", "load", "first_token")


@dataclass(frozen=True, slots=True)
class EngineTest:
    """One thing to time; all sizes are in tokens, `parallel` in sequences.

    - pp: a prompt of `prompt` random tokens, after `depth` tokens that the cache holds already.
    - tg: `generate` steps of one token, after `depth`.
    - batched: `parallel` sequences, each with a prompt of its own, then `generate` steps of one
      token for each of them.
    - load: open the model's file, which the page cache holds, until it can be used.
    - first_token: in a loaded engine, from a prompt to the first token drawn.
    """

    kind: str
    prompt: int = 0
    generate: int = 0
    depth: int = 0
    parallel: int = 1

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"an engine test is one of {', '.join(KINDS)}, got {self.kind!r}")
        wants = {
            "prompt": self.kind in ("pp", "batched", "first_token"),
            "generate": self.kind in ("tg", "batched"),
        }
        for name, wanted in wants.items():
            value = getattr(self, name)
            if value < 1 if wanted else value:
                least = "at least 1" if wanted else "no"
                raise ValueError(f"{self.kind} wants {least} {name} tokens, got {value}")
        if self.depth < 0 or (self.depth and self.kind not in ("pp", "tg")):
            raise ValueError(f"{self.kind} cannot start at depth {self.depth}")
        if self.parallel < 1 or (self.parallel > 1 and self.kind != "batched"):
            raise ValueError(f"{self.kind} cannot run {self.parallel} sequences")

    @property
    def name(self) -> str:
        at = f" @ d{self.depth}" if self.depth else ""
        names = {
            "pp": f"pp{self.prompt}{at}",
            "tg": f"tg{self.generate}{at}",
            "batched": f"pp{self.prompt}+tg{self.generate} x{self.parallel}",
            "load": "load",
            "first_token": "first token (warm)",
        }
        return names[self.kind]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of one sample, all sequences together."""
        return self.prompt * self.parallel

    @property
    def generate_tokens(self) -> int:
        """Generated tokens of one sample, all sequences together."""
        return self.generate * self.parallel

    @property
    def tokens(self) -> int:
        """Tokens processed by one sample: its rate is tokens / seconds. A load has none."""
        return self.prompt_tokens + self.generate_tokens

    @property
    def sequence(self) -> int:
        """Tokens of its longest sequence."""
        return self.depth + self.prompt + self.generate

    @property
    def context(self) -> int:
        """Cells of the cache that the test fills."""
        return self.depth + self.tokens
