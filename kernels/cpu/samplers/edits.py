"""Ops that change logits before the filters: logit_bias, penalties, dry, temperature."""

import math

import numpy as np

from kernels.cpu.isa.sweep import alone
from kernels.cpu.runtime.closures import inner
from kernels.cpu.samplers.mass import GONE, highest
from kernels.cpu.samplers.prefix import mean_depth, weigh
from reference.samplers import temperature as temperature_ops
from reference.samplers.dry import OP as DRY
from reference.samplers.logit_bias import OP as LOGIT_BIAS
from reference.samplers.penalties import OP as PENALTIES

TEMPERATURE, DYNAMIC_TEMPERATURE = (op.signature for op in temperature_ops.OPS)

LARGEST = float(np.finfo(np.float32).max)
LOWEST = 1e-5


@alone(LOGIT_BIAS.signature)
def logit_bias(logits, ids, biases, out):
    for i in range(len(out)):
        out[i] = logits[i]
    for i in range(ids.size):
        out[ids[i]] = logits[ids[i]] + biases[i]


@alone(PENALTIES.signature)
def penalties(logits, repeated, counts, repetition, frequency, presence, out):
    for i in range(logits.size):
        if repeated[i] > 0 or counts[i] > 0:
            x = np.float64(logits[i])
            if repeated[i] > 0:
                x = x * repetition if x <= 0 else x / repetition
            if counts[i] > 0:
                x -= counts[i] * frequency + presence
            out[i] = x
        else:
            out[i] = logits[i]


@inner
def holds(ids, token):
    found = False
    for i in range(ids.size):
        found |= ids[i] == token
    return found


@alone(DRY.signature)
def dry(logits, context, breakers, multiplier, base, allowed, out):
    """Compare the context's end with the tokens before each position: O(context * length of
    repeats), so quadratic only for a single token repeated throughout."""
    for i in range(len(out)):
        out[i] = logits[i]
    reach = 0  # tokens since the last breaker
    while reach < context.size and not holds(breakers, context[context.size - 1 - reach]):
        reach += 1
    for position in range(context.size):
        token, limit, length = context[position], min(reach, position), 0
        while (
            length < limit and context[position - 1 - length] == context[context.size - 1 - length]
        ):
            length += 1
        if length >= allowed and not holds(breakers, token):
            penalty = min(multiplier * math.pow(base, np.float64(length - allowed)), LARGEST)
            out[token] = min(out[token], np.float32(np.float64(logits[token]) - penalty))


@inner
def divide(logits, temperature, out):
    divisor = np.float32(temperature)
    for i in range(logits.size):
        out[i] = logits[i] / divisor


@alone(TEMPERATURE)
def temperature(logits, temperature, out):
    divide(logits, temperature, out)


@alone(DYNAMIC_TEMPERATURE)
def dynamic_temperature(logits, temperature, delta, exponent, out):
    count = 0
    for i in range(logits.size):
        count += logits[i] > GONE
    if count < 2:
        for i in range(len(out)):
            out[i] = logits[i]
    else:
        top = highest(logits)
        mass = weigh(logits, top, out)
        entropy = math.log(mass) + mean_depth(logits, top, out, mass)
        share_of_most = min(1.0, max(0.0, entropy) / math.log(count))
        low = max(0.0, temperature - delta)
        raised = (temperature + delta - low) * math.pow(share_of_most, exponent)
        divide(logits, max(LOWEST, low + raised), out)
