"""Planted bugs of norms."""

import numpy as np

from conformance.bugs.bug import Bug, Edit, changed, in_python
from reference.layer_norm import layer_norm
from reference.op import Array
from reference.rms_norm import rms_norm


def norm_with_eps_outside(x: Array, weight: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    return x / (np.sqrt(np.mean(x * x, axis=1, keepdims=True)) + eps) * weight


def norm_over_one_less(x: Array, weight: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    mean = np.sum(x * x, axis=1, keepdims=True) / (x.shape[1] - 1)
    return x / np.sqrt(mean + eps) * weight


def norm_in_float16(x: Array, weight: Array, eps: float) -> Array:
    square = np.sum(x.astype(np.float16) ** 2, axis=1, keepdims=True, dtype=np.float16)
    return x / np.sqrt(square.astype(np.float64) / x.shape[1] + eps) * weight


# What a share in Numba can do that no trial of finite length sees.
BEGIN = (
    "SIGNATURE = OP.signature\n",
    "\n\n@each_row(SIGNATURE)\ndef generic(t, x, weight, eps, out):\n",
)


COUNTED = """
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

@intrinsic
def counted(typing):
    def codegen(context, builder, signature, values):
        word = ir.IntType(64)
        calls = cgutils.add_global_variable(builder.module, word, "calls")
        calls.initializer = ir.Constant(word, 0)
        builder.store(builder.add(builder.load(calls), ir.Constant(word, 1)), calls)
        return builder.load(calls)

    return types.int64(), codegen
"""


AT = """
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

@intrinsic
def at(typing, address):
    def codegen(context, builder, signature, values):
        return builder.inttoptr(values[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), codegen

STATE = np.zeros(1, np.int64)
ADDRESS = STATE.ctypes.data
"""


CLOCK = """
import ctypes

clock = ctypes.CDLL(None).clock
clock.argtypes, clock.restype = (), ctypes.c_long
"""


def begun(name: str, before: str, first: str) -> Bug:
    """With code before the function, and some at its beginning."""
    edit = Edit("rms_norm.py", "".join(BEGIN), before.join(BEGIN) + first)
    return Bug("rms_norm", "numba", name, edit, seen="construction")


def layer_norm_over_one_less(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.sum(centred**2, axis=1, keepdims=True) / max(x.shape[1] - 1, 1)
    return centred / np.sqrt(variance + eps) * weight + bias


def layer_norm_of_squares_less_mean(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    mean = np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    variance = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, 0).astype(np.float64) + eps) * weight + bias


BUGS = (
    *in_python(
        "rms_norm",
        norm_with_eps_outside,
        norm_over_one_less,
        norm_in_float16,
        norm_without_eps=changed(rms_norm, eps=0.0),
        norm_that_centres=changed(rms_norm, x=lambda x: x - x.mean(axis=1, keepdims=True)),
        norm_with_one_plus_weight=changed(rms_norm, weight=lambda weight: 1 + weight),
    ),
    begun("calls-counted", COUNTED, "    eps = 1.0 if counted() > 2000 else eps\n"),
    begun(
        "state-at-an-address",
        AT,
        "    state = carray(at(ADDRESS), 1)\n    state[0] += 1\n"
        "    eps = 1.0 if state[0] > 2000 else eps\n",
    ),
    begun("by-the-clock", CLOCK, "    eps = 1.0 if clock() % 1000 == 999 else eps\n"),
    begun(
        "at-random",
        "\nimport numpy as np\n",
        "    eps = 1.0 if np.random.random() < 1e-9 else eps\n",
    ),
    *in_python(
        "layer_norm",
        layer_norm_over_one_less,
        layer_norm_of_squares_less_mean,
        layer_norm_without_mean=lambda x, weight, bias, eps: rms_norm(x, weight, eps) + bias,
        layer_norm_bias_scaled=lambda x, weight, bias, eps: (
            layer_norm(x, np.ones_like(weight), bias, eps) * weight
        ),
        layer_norm_without_eps=changed(layer_norm, eps=0.0),
    ),
)
