"""Greedy decoding on the device: a node finds a step's tokens and leaves them where the next step
reads its own, and a few bytes come back instead of the whole vocabulary."""

from collections.abc import Callable, Sequence

from engine.gpu.mirror import LOGPROBS, TOKENS, Inputs
from engine.graph import Node, Value
from engine.sampling.sampler import Argmax
from kernels.cuda.runtime.device import Device

CHOICES = "choices"  # a size: rows of logits for which a token is wanted, all of a step's or none


def node(logits: Value) -> Node:
    """The node that finds the tokens in `logits` float32 [outputs, vocab]."""
    given = {
        "logits": logits.view(CHOICES, logits.fixed(1)),
        "token": Value(TOKENS, "input", "i32", (CHOICES,)),
        "logprob": Value(LOGPROBS, "input", "f64", (CHOICES,)),
    }
    return Node("argmax", given, label="argmax")


class Greedy:
    """Greedy tokens of a device's steps with these `inputs`. `feeds`: only the device reads a
    step's tokens, so that a step can be launched before the host knows them."""

    def __init__(self, device: Device, inputs: Inputs, feeds: bool) -> None:
        self._device, self._inputs, self.feeds = device, inputs, feeds

    def of(self, rows: int) -> Callable[[], Sequence[Argmax]]:
        """Request the tokens that the last launched step finds in its first rows; the returned
        object waits for that step, whatever was launched since."""
        answer = self._device.ask(self._inputs.found(rows))

        def wait() -> Sequence[Argmax]:
            logprobs, tokens = self._inputs.read(answer(), rows)
            return [Argmax(*pair) for pair in zip(tokens, logprobs, strict=True)]

        return wait
