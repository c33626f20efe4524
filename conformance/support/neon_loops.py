"""Linear's inner loops in NEON, cross-compiled and counted. Times under emulation mean nothing; the
number of instructions that share the vector units with a loop's dot products is a limit.

    python -m conformance.support.neon_loops CACHE_FOLDER

prints the table of docs/guide/arm.md: for each loop the dot products, and their share of the
instructions for the vector units. A core whose vector units each take any of these instructions in
a cycle, as Arm's Neoverse, multiplies at most at that share of its peak.
"""

import json
import re
import sys
from dataclasses import dataclass

from conformance.support.cross_compile import python_for

CPU, FEATURES = "neoverse-v2", ("bf16", "dotprod", "fullfp16", "i8mm", "lse", "neon")
DOTS = {"neon_dotprod": "sdot", "neon_i8mm": "smmla"}
VECTOR = re.compile(r"\bv\d+\.|\b[dqs]\d+\b")
MEMORY = re.compile(r"ld|st|prfm")

# Compiled tiles of the real loops: (variant, format, tokens).
COMPILE = """
import json, sys
from conformance.support import for_aarch64
for_aarch64.pretend()

from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import LAYOUTS
from kernels.cpu.linear import linear_neon
from kernels.cpu.linear.linear import FIRST
from kernels.cpu.linear.linear_blocks import extra_type, multiply
from kernels.cpu.runtime.object_code import assembly
from kernels.cpu.runtime.share import arguments

WAYS = {"neon_dotprod": linear_neon.DOTPROD, "neon_i8mm": linear_neon.I8MM}
found = {}
for word in sys.argv[1:]:
    variant, format, tokens = word.split("/")
    layout = LAYOUTS[format]
    tile = multiply(WAYS[variant], layout, CODINGS[format].factor)(int(tokens))
    extra = {"float32": "f32", "int32": "i32"}[extra_type(layout).__name__]
    signature = (
        f"panel: i32[words], scale: f32[scales], extra: {extra}[extras], weight: u8[packed],"
        " tuning: i64[knobs] -> out: f32[tokens out]"
    )

    def loop(args, thread, n_threads):
        panel, scale, extra, weight, tuning, out = arguments(args, signature)
        panels = panel, scale, extra
        tile(FIRST, (panels, weight, 0, len(scale), out, FIRST, FIRST, True, tuning))

    loop.__qualname__ = word
    found[word] = assembly(loop)
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop's instructions, each "name operands"."""

    instructions: tuple[str, ...]

    def count(self, *names: str) -> int:
        return sum(line.split()[0] in names for line in self.instructions)

    @property
    def stored(self) -> int:
        """Stores of vector registers; an inner loop without spills has none."""
        return sum(bool(re.match(r"st\w+ .*\bq\d", line)) for line in self.instructions)

    @property
    def vectors(self) -> int:
        """Instructions for the vector units."""
        names = (line for line in self.instructions if not MEMORY.match(line))
        return sum(bool(VECTOR.search(line)) for line in names)


def loop_of(text: str, name: str) -> Loop:
    """The basic block of AArch64 assembly with the most instructions of this name."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.match(r"\.?L\w+:", line):
            blocks.append([])
        elif re.match(r"\t[a-z]", line):
            blocks[-1].append(" ".join(line.split()))
    return max((Loop(tuple(block)) for block in blocks), key=lambda loop: loop.count(name))


def loops(words: list[str], cache: str) -> dict[str, Loop]:
    """The inner loop by variant/format/tokens."""
    told = python_for(CPU, FEATURES, COMPILE, *words, ASSAY_CACHE=cache)
    return {
        word: loop_of(text, DOTS[word.partition("/")[0]]) for word, text in json.loads(told).items()
    }


def main() -> None:
    formats = "Q8_0", "Q4_0", "Q5_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"
    tiles = ("neon_dotprod", 1), ("neon_dotprod", 8), ("neon_i8mm", 8)
    words = [f"{variant}/{f}/{tokens}" for variant, tokens in tiles for f in formats]
    print("| variant | format | tokens | dots | for the vector units | share |")
    print("| --- | --- | --- | --- | --- | --- |")
    for word, loop in loops(words, sys.argv[1]).items():
        dots = loop.count("sdot", "smmla")
        cells = *word.split("/"), dots, loop.vectors, f"{dots / loop.vectors:.0%}"
        print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
