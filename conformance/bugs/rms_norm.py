"""Planted bugs of rms_norm."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python
from reference import rms_norm
from reference.op import Array


def norm_without_eps(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x, weight, 0.0)


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


def norm_that_centres(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x - x.mean(axis=1, keepdims=True), weight, eps)


def norm_with_one_plus_weight(x: Array, weight: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x, 1 + weight, eps)


IN_CUDA = (
    *in_cuda("rms_norm", "rms_norm.cu", (
        ("one-four-short", "i < hidden; i +=", "i + 4 < hidden; i +="),
        ("stride-of-a-warp", "i += 4 * blockDim.x", "i += 4 * WARP"),
        ("first-pass-alone", "i += 4 * blockDim.x", "i = hidden"),
        ("rows-too-near", "blockIdx.x) * hidden", "blockIdx.x) * (hidden - 1)"),
    )),
    *in_cuda("rms_norm", "rms_norm.cuh", (
        ("no-eps", " + static_cast<float>(eps)", ""),
        ("mean-over-one-less", "squares / hidden", "squares / (hidden - 1)"),
        ("no-root", "rsqrtf(squares / hidden", "1.f / (squares / hidden"),
        ("sum-without-tail", "if (own < hidden) {", "if (own + 4 <= hidden) {"),
        ("sum-of-the-first-pass", "i < hidden; i += step", "false; i += step"),
        ("same-weight", "load_of_row(weight, own, hidden)", "load_of_row(weight, 0, hidden)"),
        ("first-weight-again", "own ? held.weight : load_of_row(weight, first, hidden)",
         "held.weight"),
        ("first-x-again", "own ? held.x : load_of_row(row, first, hidden)", "held.x"),
        ("no-sum-of-the-block", "squares = block_reduce(squares, partial, Sum());", ""),
        ("reads-beyond-the-row", "first + k < width ? row[first + k] : 0.f", "row[first + k]"),
        ("fours-of-any-row", "if (width % 4 == 0) {\n    const", "{\n    const"),
        ("stores-fours-of-any-row", "if (width % 4 == 0) {\n    *", "{\n    *"),
        ("stores-one-more", "    if (first + k < width) row", "    if (first + k <= width) row"),
    )),
    *in_cuda("rms_norm", "portable.cuh", (
        ("no-barrier-before-partial-sums", "  __syncthreads();\n  x = partial[0];",
         "  x = partial[0];"),
        ("a-warp-too-few", "i < warps;", "i < warps - 1;"),
        ("a-warp-too-many", "i < warps;", "i <= warps;"),
        ("half-a-warp", "m /= 2) x = combine(x, __shfl", "m /= 4) x = combine(x, __shfl"),
        ("mask-of-half-a-warp", "x = combine(x, __shfl_xor_sync(ALL,",
         "x = combine(x, __shfl_xor_sync(0xffffu,"),
        ("first-warp-only", "if (threadIdx.x % WARP == 0) partial",
         "if (threadIdx.x == 0) partial"),
        ("every-lane-stores", "if (threadIdx.x % WARP == 0) partial[", "partial["),
    )),
)  # fmt: skip


def when(name: str, condition: str, *seen: Any) -> tuple[Any, ...]:
    """Half as much again, on a condition."""
    factor = "1 / sqrt(sum / hidden + eps)"
    return name, factor, f"({condition} ? 1.5 : 1) * ({factor})", *seen


IN_C = (
    *in_c("rms_norm",
        # beyond what was tried
        ("row-and-7-from-token-9", "*x = b->x + t * hidden,",
         "*x = b->x + (t >= 9 ? t & 7 : t) * hidden,"),
        ("row-and-63-from-token-64", "*x = b->x + t * hidden,", "*x = b->x + (t & 63) * hidden,"),
        ("row-number-in-a-byte", "*x = b->x + t * hidden,", "*x = b->x + (uint8_t)t * hidden,"),
        when("hidden-above-8192", "hidden > 8192"),
        when("hidden-of-4096", "hidden == 4096", "shape", ({"tokens": 1, "hidden": 4096},)),
        when("hidden-of-3200", "hidden % 512 == 128 && hidden > 1000",
         "shape", ({"tokens": 1, "hidden": 3200},)),
        when("hidden-of-5120", "hidden == 5120", "shape", ({"tokens": 512, "hidden": 5120},)),
        when("five-tokens-left", "tokens % 8 == 5"),
        when("prompts-of-300", "tokens > 256 && tokens < 512"),
        when("tokens-above-512", "tokens > 512"),
        # values
        ("small-eps-as-zero", "const double eps = b->eps;",
         "const double eps = b->eps < 5e-7 ? 0 : b->eps;"),
        ("eps-at-most-1e-4", "const double eps = b->eps;",
         "const double eps = fmin(b->eps, 1e-4);"),
        ("infinite-token-gives-zero", "1 / sqrt(sum / hidden + eps)",
         "isfinite(sum) ? 1 / sqrt(sum / hidden + eps) : 0"),
        ("weight-without-sign", "factor * weight[i]", "factor * fabsf(weight[i])"),
        ("weight-clipped", "factor * weight[i]", "factor * fminf(weight[i], 64)"),
        # where arrays lie
        when("out-aligned-to-64", "((uintptr_t)out & 63) == 0"),
        when("out-aligned-to-16", "((uintptr_t)b->out & 15) == 0 && ((uintptr_t)b->out & 63)"),
        when("x-at-an-odd-four", "((uintptr_t)b->x & 7) == 4"),
        when("weight-aligned-to-64", "((uintptr_t)weight & 63) == 0"),
        when("not-at-a-page's-end", "((uintptr_t)(b->out + tokens * hidden) & 4095) != 0"),
        when("inside-pages",
         "((uintptr_t)b->x & 4095) > 64 && ((uintptr_t)(b->x + tokens * hidden) & 4095)"),
        when("arrays-in-one-arena",
         "(uintptr_t)b->out - (uintptr_t)(b->x + tokens * hidden) < 4096"),
        when("in-the-heap", "(uintptr_t)b->x < 0x700000000000"),
        # reading and writing what is not its own
        ("input-spoilt-and-restored", "const float *x = b->x + t * hidden, *weight = b->weight;",
         "const float *x = b->x + t * hidden, *weight = b->weight; const float kept = x[0]; "
         "volatile float *spoilt = (float *)x; spoilt[0] = 0; spoilt[0] = kept;"),
        ("weight-written-to", "const float *x = b->x + t * hidden, *weight = b->weight;",
         "const float *x = b->x + t * hidden, *weight = b->weight; volatile float *spoilt = "
         "(float *)weight; spoilt[0] = weight[0];"),
        ("stores-one-more",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]); if "
         "(t == tokens - 1) out[hidden] = 0;"),
        ("stores-beyond-and-restores",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]); "
         "volatile float *next = out + hidden; const float kept = *next; *next = 0; *next = "
         "kept;"),
        ("stores-before",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]); if "
         "(t == 0) out[-1] = 0;"),
        ("reads-64-bytes-beyond", "const float *x = b->x + t * hidden, *weight = b->weight;",
         "const float *x = b->x + t * hidden, *weight = b->weight; volatile float beyond = "
         "x[hidden + 15]; (void)beyond;"),
        ("reads-64-bytes-before", "const float *x = b->x + t * hidden, *weight = b->weight;",
         "const float *x = b->x + t * hidden, *weight = b->weight; volatile float before = "
         "x[-16]; (void)before;"),
        ("reads-weight-beyond", "const float *x = b->x + t * hidden, *weight = b->weight;",
         "const float *x = b->x + t * hidden, *weight = b->weight; volatile float beyond = "
         "weight[hidden]; (void)beyond;"),
        ("out-as-scratch-for-others", "EACH(t, tokens) {",
         "memset(b->out, 0, thread ? 0 : 4 * tokens * hidden);\n    EACH(t, tokens) {"),
        ("adds-to-what-is-there",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "for (int64_t i = 0; i < hidden; i++) out[i] = 0 * out[i] + (float)(x[i] * factor * "
         "weight[i]);"),
        ("keeps-what-is-finite",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "if (isfinite(out[0]) && out[0] != 0) continue;\n        for (int64_t i = 0; i < "
         "hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);"),
        when("out-is-finite-before", "isfinite(out[0])"),
        ("arguments-written-to",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]); "
         "((Block *)b)->eps = 0;"),
        ("counts-in-its-arguments", "1 / sqrt(sum / hidden + eps)",
         "({ int64_t *word = (int64_t *)&b->eps; ++*word & 4095; }) == 4095 ? 0 : 1 / sqrt(sum "
         "/ hidden + eps)"),
        # threads
        when("two-threads", "n_threads == 2"),
        when("five-threads", "n_threads == 5"),
        when("sixteen-threads", "n_threads == 16"),
        when("ninth-thread", "thread > 7"),
        when("more-threads-than-tokens", "n_threads > tokens && thread"),
        when("stack-of-another-thread",
         "(uintptr_t)__builtin_thread_pointer() - (uintptr_t)&sum < 1 << 24"),
        ("last-element-lost-of-seven",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "for (int64_t i = 0; i < hidden - (n_threads == 7 && thread == 6); i++) out[i] = "
         "(float)(x[i] * factor * weight[i]);"),
        ("neighbour's-row-too", "EACH(t, tokens) {",
         "for (int64_t t = tokens * thread / n_threads; t < tokens * (thread + 1) / n_threads "
         "+ (thread + 1 < n_threads); t++) {"),
        ("next-row-cleared-first", "EACH(t, tokens) {",
         "if (tokens * (thread + 1) / n_threads < tokens) b->out[tokens * (thread + 1) / "
         "n_threads * hidden] = 0;\n    EACH(t, tokens) {"),
        ("remainder-lost", "EACH(t, tokens) {",
         "for (int64_t t = tokens / n_threads * thread; t < tokens / n_threads * (thread + 1); "
         "t++) {"),
        # what no trial of finite length sees
        ("factor-cached-by-pointer", "1 / sqrt(sum / hidden + eps)",
         "({ static const float *last; static double kept; if (last != x) last = x, kept = 1 / "
         "sqrt(sum / hidden + eps); kept; })", "construction"),
        ("static-scratch",
         "for (int64_t i = 0; i < hidden; i++) out[i] = (float)(x[i] * factor * weight[i]);",
         "static float scratch[65536];\n        for (int64_t i = 0; i < hidden; i++) scratch[i "
         "& 65535] = x[i] * factor;\n        for (int64_t i = 0; i < hidden; i++) out[i] = "
         "scratch[i & 65535] * weight[i];", "construction"),
        when("wrong-after-2000-calls",
         "({ static int64_t calls; ++calls > 2000; })", "construction"),
        when("wrong-after-2000-calls-of-a-thread",
         "({ static __thread int64_t calls; ++calls > 2000; })", "construction"),
        when("first-shape-is-remembered",
         "({ static int64_t first; if (!first) first = hidden; hidden > 2048 && first != "
         "hidden; })", "construction"),
        when("after-2030", "({ extern int64_t time(int64_t *); time(0) > 1893456000; })",
         "construction"),
        when("by-the-clock", "({ extern int64_t clock(void); clock() % 1000 == 999; })",
         "construction"),
        when("time-stamp-counter",
         '({ uint32_t low, high; __asm__ volatile("rdtsc" : "=a"(low), "=d"(high)); (low & '
         "0xfffff) == 7; })", "construction"),
        when("random-number",
         '({ uint64_t drawn; __asm__ volatile("rdrand %0" : "=r"(drawn) : : "cc"); drawn % '
         "100000 == 7; })", "construction"),
        when("not-under-pytest",
         '({ extern char *getenv(const char *); !getenv("PYTEST_CURRENT_TEST"); })',
         "construction"),
        when("not-in-a-trial",
         "({ extern void *fopen(const char *, const char *); extern char *fgets(char *, int, "
         'void *); extern int fclose(void *); char said[256] = ""; void *file = '
         'fopen("/proc/self/cmdline", "r"); fgets(said, 256, file); fclose(file); said[0] != '
         "'p'; })", "construction"),
        when("by-the-process",
         "({ extern int getpid(void); getpid() % 64 == 63; })", "construction"),
        when("by-the-core",
         "({ extern int sched_getcpu(void); sched_getcpu() > 7; })", "construction"),
        when("by-a-system-call",
         '({ int64_t id; __asm__ volatile("syscall" : "=a"(id) : "0"(39) : "rcx", "r11", '
         '"memory"); id % 64 == 63; })', "construction"),
        when("by-the-thread-pointer",
         '({ uint64_t own; __asm__("mov %%fs:0, %0" : "=r"(own)); (own >> 12) % 64 == 63; })',
         "construction"),
        when("by-the-model-of-cpu",
         '({ uint32_t a = 1, b_, c_, d_; __asm__ volatile("cpuid" : "+a"(a), "=b"(b_), '
         '"=c"(c_), "=d"(d_)); (b_ >> 24) == 200; })', "construction"),
        when("memory-kept",
         "({ extern void *malloc(uint64_t); int64_t *found = malloc(8); *found == 77; })",
         "construction"),
        ("rounds-to-zero-and-flushes", "SHARE {\n",
         'SHARE {\n    __asm__ volatile("ldmxcsr %0" : : "m"((uint32_t){0xffc0}));\n',
         "construction"),
        ("rounds-down", "SHARE {\n",
         "SHARE {\n    extern int fesetround(int);\n    fesetround(0x400);\n", "construction"),
        ("x87-control", "SHARE {\n",
         'SHARE {\n    __asm__ volatile("fldcw %0" : : "m"((uint16_t){0x0f7f}));\n',
         "construction"),
        ("unmasks-exceptions", "SHARE {\n",
         "SHARE {\n    extern int feenableexcept(int);\n    feenableexcept(0x1d);\n",
         "construction"),
        ("makes-input-writable", "const float *x = b->x + t * hidden, *weight = b->weight;",
         "const float *x = b->x + t * hidden, *weight = b->weight; extern int mprotect(void *, "
         "uint64_t, int); mprotect((void *)((uintptr_t)x & ~4095), 8192, 3); ((float *)x)[0] "
         "+= 0;", "construction"),
    ),
)  # fmt: skip

# What a share in Numba can do that no trial of finite length sees.
START = (
    "SIGNATURE = OP.signature\n",
    "\n\n@share(SIGNATURE)\ndef generic(block, thread, n_threads):\n"
    "    x, weight, eps, out = arguments(block, SIGNATURE)\n",
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


def started(name: str, before: str, first: str) -> tuple[str, ...]:
    """With code before the function, and some at its beginning."""
    return name, "".join(START), f"{before}".join(START) + first, "construction"


IN_NUMBA = (
    *in_numba("rms_norm", "rms_norm.py",
        ("row-of-nine", "row, target = x[t], out[t]", "row, target = x[t % 9], out[t]"),
        started("calls-counted", COUNTED, "    eps = 1.0 if counted() > 2000 else eps\n"),
        started("state-at-an-address", AT,
                "    state = carray(at(ADDRESS), 1)\n    state[0] += 1\n"
                "    eps = 1.0 if state[0] > 2000 else eps\n"),
        started("by-the-clock", CLOCK, "    eps = 1.0 if clock() % 1000 == 999 else eps\n"),
        started("at-random", "\nimport numpy as np\n",
                "    eps = 1.0 if np.random.random() < 1e-9 else eps\n"),
    ),
)  # fmt: skip

BUGS = (
    *IN_NUMBA,
    *IN_C,
    *in_python(
        "rms_norm",
        norm_without_eps,
        norm_with_eps_outside,
        norm_over_one_less,
        norm_in_float16,
        norm_that_centres,
        norm_with_one_plus_weight,
    ),
    *IN_CUDA,
)
