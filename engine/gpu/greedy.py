"""Greedy text where the logits are: a node finds a step's tokens and leaves them where the next
step reads its own, and a few bytes come back in place of the whole vocabulary."""

from collections.abc import Callable, Sequence

from engine.gpu.mirror import LOGPROBS, TOKENS, Inputs
from engine.graph import Node, Value
from engine.sampling.sampler import Argmax
from kernels.cuda.runtime.device import Device

CHOICES = "choices"  # a size: how many rows of logits a token is wanted of, all of a step's or none


def node(logits: Value) -> Node:
    """What finds them, in `logits` float32 [outputs, vocab]."""
    given = {
        "logits": logits.view(CHOICES, logits.fixed(1)),
        "token": Value(TOKENS, "input", "i32", (CHOICES,)),
        "logprob": Value(LOGPROBS, "input", "f64", (CHOICES,)),
    }
    return Node("likeliest", given, label="likeliest")


class Greedy:
    """Of steps of such a device's `inputs`. `feeds`: whether nothing but the device reads a step's
    tokens, so that one can begin before they are known here."""

    def __init__(self, device: Device, inputs: Inputs, feeds: bool) -> None:
        self._device, self._inputs, self.feeds = device, inputs, feeds

    def of(self, rows: int) -> Callable[[], Sequence[Argmax]]:
        """Ask for what the step that was begun last finds in its first rows; what is given waits
        for that, whatever was begun since."""
        answer = self._device.ask(self._inputs.found(rows))

        def wait() -> Sequence[Argmax]:
            logprobs, tokens = self._inputs.read(answer(), rows)
            return [Argmax(*pair) for pair in zip(tokens, logprobs, strict=True)]

        return wait
