"""Temperature, logits / T, with T fixed or dynamic by entropy."""

import numpy as np

from reference.bounds import relative
from reference.laws import samplers as laws
from reference.laws.common import contained
from reference.op import Arguments, Array, Case, Op
from reference.samplers.distribution import (
    ON_LOGITS,
    cost,
    depths,
    mean,
    option,
    relative_errors,
    some_logits,
    total_error,
)
from reference.softmax import softmax

LOWEST = 1e-5  # lower limit of a dynamic temperature, against overflow


def temperature(logits: Array, temperature: float) -> Array:
    """logits / temperature. float32 [vocab], temperature > 0 -> float64 [vocab]."""
    return logits.astype(np.float64) / temperature


def dynamic_temperature(logits: Array, temperature: float, delta: float, exponent: float) -> Array:
    """logits / T with T = low + (temperature + delta - low) (H / ln n)^exponent (llama.cpp).

    low = max(0, temperature - delta); H is the entropy in nats and n the number of remaining
    tokens. A single token is unchanged. T is at least 1e-5.
    logits float32 [vocab], temperature, delta, exponent >= 0 -> float64 [vocab].
    """
    n, x = int(np.isfinite(logits).sum()), logits.astype(np.float64)
    if n < 2:
        return x
    return x / followed(entropy(logits), n, temperature, delta, exponent)


def entropy(logits: Array) -> float:
    """H = -sum p ln p in nats, as ln sum exp(-depth) + E(depth). [vocab] -> scalar."""
    depth = depths(logits)
    return float(np.log(np.exp(-depth).sum())) + mean(softmax(logits), depth)


def followed(H: float, n: int, temperature: float, delta: float, exponent: float) -> float:
    """The temperature for an entropy of H nats among n tokens."""
    low = max(0.0, temperature - delta)
    share = min(1.0, max(0.0, H) / np.log(n))
    return float(max(LOWEST, low + (temperature + delta - low) * share**exponent))


def make_temperature(case: Case) -> Arguments:
    rng = case.rng()
    logits = some_logits(case, rng)
    T = option(case, (0.01, 1e-3, 0.7, 100.0, 1.0, 0.3, 1e-5, 1.5, 0.1, 1e6, 0.8))
    return {"logits": logits, "temperature": T}


def make_dynamic_temperature(case: Case) -> Arguments:
    rng = case.rng()
    return {
        "logits": some_logits(case, rng),
        "temperature": option(case, (0.7, 1.0, 0.01, 100.0)),
        "delta": option(case, (0.5, 0.1, 2.0, 0.0, 0.7, 100.0, 0.01)),
        "exponent": option(case, (1.0, 0.5, 2.0, 0.0, 0.3, 1.0, 10.0, 1.7, 1.0)),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The temperature is rounded to float32, then the quotient; -inf stays."""
    out = expected["out"]
    return {"out": np.where(np.isfinite(out), relative(out, 2), 0)}


def dynamic_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """T is monotonic in H, so the ends of H's error interval give those of 1 / T."""
    out, logits = expected["out"], inputs["logits"]
    n = int(np.isfinite(logits).sum())
    plain = np.where(np.isfinite(out), relative(out, 3), 0)
    if n < 2:
        return {"out": plain}
    H, p, depth = entropy(logits), softmax(logits), depths(logits)
    error = total_error(logits) + mean(p, relative_errors(logits) * (depth + mean(p, depth)))
    settings = (inputs["temperature"], inputs["delta"], inputs["exponent"])
    low, mid, high = (followed(h, n, *settings) for h in (H - error, H, H + error))
    spread = max(1 / low - 1 / mid, 1 / mid - 1 / high)
    return {"out": plain + np.where(np.isfinite(out), np.abs(out), 0) * mid * spread}


SIGNATURE = "logits: f32[vocab], temperature: f64 -> out: f32[vocab]"
OPS = (
    Op(
        name="temperature",
        reference=temperature,
        signature=SIGNATURE,
        **ON_LOGITS,
        make=make_temperature,
        bound=bound,
        cost=cost,
        nan="element",
        laws=(contained(SIGNATURE, make_temperature, "vocab"), *laws.TEMPERATURE),
    ),
    Op(
        name="dynamic_temperature",
        reference=dynamic_temperature,
        signature=(
            "logits: f32[vocab], temperature: f64, delta: f64, exponent: f64 -> out: f32[vocab]"
        ),
        **ON_LOGITS,
        make=make_dynamic_temperature,
        bound=dynamic_bound,
        cost=cost,
        laws=laws.DYNAMIC_TEMPERATURE,
    ),
)
