"""Engine tests, named as llama-bench names its tests."""

from dataclasses import dataclass


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
