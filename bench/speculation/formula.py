"""What drafts gain if every drafted token is accepted alike (arXiv 2211.17192)."""

from engine.speculation.adaptive import expected_tokens


def speedup(alpha: float, gamma: int, c: float, verifying: float = 1.0) -> float:
    """How many times as fast a text is written in drafts of `gamma` tokens, each of which costs `c`
    steps of the target and is accepted with probability `alpha` if those before it were:
    (1 - alpha^(gamma + 1)) / (1 - alpha) / (gamma c + 1).

    The 1 is the paper's: verifying costs what a step of one token does. `verifying` is put in its
    place where the cost of a step of gamma + 1 tokens over one of 1 was measured.
    """
    return float(expected_tokens([alpha] * gamma)[-1]) / (gamma * c + verifying)
