"""Reads the machine code of CUDA kernels: loads and their widths, what waits for them, and tensor
core instructions. nvdisasm disassembles it, without a GPU; it comes with a CUDA toolkit or in the
wheel nvidia-cuda-nvdisasm.

An instruction of these GPUs is 128 bits, the upper of which control scheduling: for how many cycles
the warp issues nothing after it, which of six scoreboards is set until its result arrives, and
which ones it waits for (Jia et al., arXiv 1804.06826, section 2.1). A warp issues in order: a
waiting instruction blocks all after it, so the bytes in flight from memory can be read off.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.launch import Launch
from kernels.cuda.runtime.nvrtc import Compiled

WHEEL = "nvidia-cuda-nvdisasm"
PATIENCE = 60.0  # seconds
_FUNCTION = re.compile(r"^\.text\.(\w+):")
_LABEL = re.compile(r"^(\.L_\w+):")
_LINE = re.compile(r"^\s+/\*([0-9a-f]+)\*/\s+(@!?U?P\w+)?\s*([A-Z][\w.]*)\s*(.*?)\s*;")
_WORD = re.compile(r"/\* 0x([0-9a-f]{16}) \*/\s*$")
_REGISTER = re.compile(r"\b(U?R)(\d+)(\.64)?")
_PARAMETER = re.compile(r"\bc\[0x0\]\[(0x[0-9a-f]+)\]")
_TARGET = re.compile(r"\((\.L_\w+)\)")
_WIDTH = re.compile(r"\.(8|U8|S8|16|U16|S16|64|128)\b")
FIRST_PARAMETER = {75: 0x160, 80: 0x160, 90: 0x210}  # where they lie in constant memory
SCOREBOARDS = 6
NO_RESULT = ("ST", "RED", "LDGSTS", "LDGDEPBAR", "DEPBAR", "BRA", "BSSY", "BSYNC", "CALL", "RET")
NOTHING: frozenset[str] = frozenset()
Origins = dict[
    str, frozenset[str]
]  # the arrays from whose addresses a register's value is computed


@dataclass(frozen=True, slots=True)
class Instruction:
    """`opcode` with its modifiers, e.g. LDG.E.128.CONSTANT, and `operands` as printed. `stall`:
    cycles until the next; `sets`: the scoreboard that its result clears, None without one; `waits`:
    scoreboards that must be clear before it is issued; `label`: its jump target."""

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    stall: int
    sets: int | None
    waits: frozenset[int]
    label: str = ""

    @property
    def stem(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def bytes(self) -> int:
        """Bytes that a thread loads or stores by it."""
        found = _WIDTH.search(self.opcode)
        return int(found[1].strip("US")) // 8 if found else 4

    @property
    def loads(self) -> bool:
        """Whether it loads from global memory."""
        return self.stem in ("LDG", "LDGSTS")

    @property
    def multiplies(self) -> bool:
        """Whether it is a tensor core instruction."""
        return self.stem in ("HMMA", "IMMA")

    @property
    def copies(self) -> bool:
        """Whether it only copies a register."""
        if self.stem == "MOV":
            return self.operands[1][0] == "R"
        plain = self.opcode.startswith("IMAD.MOV") and self.operands[1:3] == ("RZ", "RZ")
        return plain and bool(_REGISTER.match(self.operands[3]))

    @property
    def writes(self) -> frozenset[str]:
        """Registers written."""
        own = next((o for o in self.operands if not re.match(r"!?U?P(\d|T)", o)), "")
        found = _REGISTER.match(own)
        if not found or self.stem.endswith("SETP") or self.stem.startswith(NO_RESULT):
            return NOTHING
        count = 1
        if self.stem.startswith(("LD", "ULD")):
            count = int(self.opcode[-1]) if self.stem == "LDSM" else max(1, self.bytes // 4)
        elif self.multiplies:
            count = 4
        elif ".WIDE" in self.opcode or ".64" in self.opcode or self.stem[0] == "D":
            count = 2
        return frozenset(f"{found[1]}{int(found[2]) + i}" for i in range(count))

    @property
    def reads(self) -> frozenset[str]:
        """Registers read, as far as they are named: of tensor core operands the first of a run."""
        own = self.writes
        rest = self.operands[1:] if own else self.operands
        found = [match for word in rest for match in _REGISTER.finditer(word)]
        return frozenset(
            f"{kind}{int(number) + i}"
            for kind, number, wide in (match.groups() for match in found)
            for i in range(2 if wide else 1)
        )


@dataclass(frozen=True, slots=True)
class Load:
    """A load from global memory: `bytes` per thread of the array of this name, or of one of several
    ("weight|weight_1"), "" if that cannot be told."""

    instruction: Instruction
    argument: str

    @property
    def bytes(self) -> int:
        return self.instruction.bytes

    def is_of(self, arrays: Collection[str]) -> bool:
        """Whether it may read one of these."""
        return any(name in arrays for name in self.argument.split("|"))


@dataclass(frozen=True)
class Loop:
    """The code between a label and a jump back to it."""

    instructions: tuple[Instruction, ...]
    loads: tuple[Load, ...]

    @cached_property
    def bytes(self) -> int:
        """Bytes that a thread loads per iteration."""
        return sum(load.bytes for load in self.loads)

    @cached_property
    def products(self) -> int:
        """Tensor core instructions."""
        return sum(one.multiplies for one in self.instructions)

    def count(self, stem: str) -> int:
        return sum(one.stem == stem for one in self.instructions)

    def cycles(self, turns: int, far: float, near: float, cold: Collection[str]) -> float:
        """Cycles of a lone warp for so many iterations, if loads of `cold` arrays take `far` cycles
        and all others `near`, and the first iteration's own have just been issued."""
        away = {x.instruction.address: far if x.is_of(cold) else near for x in self.loads}
        down = [0.0] * SCOREBOARDS  # when each is issued
        for one in self.instructions:
            if one.sets is not None and away.get(one.address) == far:
                down[one.sets] = far
        now = 0.0
        for _ in range(turns):
            for one in self.instructions:
                now = max([now, *(down[i] for i in one.waits)])
                if one.sets is not None and one.loads:
                    down[one.sets] = max(down[one.sets], now + away[one.address])
                now += max(1, one.stall)
        return now

    @cached_property
    def copies_of_loads(self) -> tuple[Instruction, ...]:
        """Copies of values loaded in the same iteration: they wait for the load, so that it does
        not overlap with other work."""
        fresh: set[str] = set()
        found = []
        for one in self.instructions:
            if one.copies and one.reads & fresh:
                found.append(one)
            fresh -= one.writes
            if one.stem == "LDG":
                fresh |= one.writes
        return tuple(found)


@dataclass(frozen=True)
class MachineCode:
    """A launch's compiled function."""

    launch: Launch
    capability: int
    compiled: Compiled
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """Loads in program order, each with the array from whose address its own is computed. Back
        edges are not followed: they carry advanced pointers."""
        pointers = self._pointers()
        jumped: dict[int, list[Origins]] = {}  # known values at jump targets
        known: Origins = {}
        found = []
        for one in self.instructions:
            known = _merged([known, *jumped.pop(one.address, [])])
            from_constants = {int(at, 16) for o in one.operands for at in _PARAMETER.findall(o)}
            origin = frozenset(pointers[at] for at in from_constants if at in pointers)
            origin = origin.union(*(known.get(register, NOTHING) for register in one.reads))
            if one.loads:
                where = one.operands[-1 if one.stem == "LDG" else 1].rpartition("][")[2]
                names = (known.get(f"{k}{n}", NOTHING) for k, n, _ in _REGISTER.findall(where))
                found.append(Load(one, "|".join(sorted(frozenset().union(*names)))))
                origin = NOTHING
            for register in one.writes:
                # a predicated instruction may leave the previous value
                kept = known.get(register, NOTHING) if one.predicate else NOTHING
                known[register] = origin | kept
            if one.label and self.labels.get(one.label, 0) > one.address:
                jumped.setdefault(self.labels[one.label], []).append(dict(known))
            if one.stem in ("EXIT", "BRA") and not one.predicate:
                known = {}
        return tuple(found)

    def _pointers(self) -> dict[int, str]:
        """The arrays by where their addresses are in constant memory."""
        at, found = FIRST_PARAMETER[max(c for c in FIRST_PARAMETER if c <= self.capability)], {}
        for argument, kind in zip(self.launch.arguments, self.launch.parameters, strict=False):
            size = 8 if kind.endswith("*") or kind in ("double", "int64_t", "uint64_t") else 4
            at += -at % size
            if kind.endswith("*"):
                found[at] = argument.name
            at += size
        return found

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Innermost loops, in program order."""
        spans = [
            (self.labels[one.label], one.address)
            for one in self.instructions
            if one.stem == "BRA" and self.labels.get(one.label, one.address + 1) <= one.address
        ]
        inner = [
            (first, last)
            for first, last in spans
            if not any(first <= f and t <= last and (f, t) != (first, last) for f, t in spans)
        ]
        return tuple(self._loop(*span) for span in sorted(set(inner)))

    def _loop(self, first: int, last: int) -> Loop:
        inside = tuple(one for one in self.instructions if first <= one.address <= last)
        loads = tuple(load for load in self.loads if first <= load.instruction.address <= last)
        return Loop(inside, loads)

    @cached_property
    def stream(self) -> Loop | None:
        """The loop that loads most, 16-byte loads before all others; None if none loads."""
        loops = [loop for loop in self.loops if loop.loads]
        return max(loops, key=_streams, default=None)

    @cached_property
    def multiplying(self) -> Loop | None:
        """The loop with most tensor core instructions; None if there is none."""
        loops = [loop for loop in self.loops if loop.products]
        return max(loops, key=lambda loop: loop.products, default=None)


def _merged(states: Sequence[Origins]) -> Origins:
    """Possible values where control flow merges."""
    found: Origins = {}
    for state in states:
        for register, names in state.items():
            found[register] = found.get(register, NOTHING) | names
    return found


def _streams(loop: Loop) -> tuple[int, int]:
    return sum(load.bytes for load in loop.loads if load.bytes == 16), loop.bytes


def program() -> Path | None:
    """nvdisasm, from the wheel or the path."""
    try:
        listed = files(WHEEL) or []
    except PackageNotFoundError:
        listed = []
    for path in listed:
        if path.stem == "nvdisasm":
            return Path(str(path.locate()))
    found = shutil.which("nvdisasm")
    return Path(found) if found else None


def missing() -> str:
    """Why no machine code can be read here; "" if it can."""
    if reason := nvrtc.missing():
        return reason
    return "" if program() else f"nvdisasm is not here: pip install {WHEEL}"


def read(launch: Launch, capability: int) -> MachineCode:
    """Compile for GPUs of a capability, e.g. 90, unless the cache folder has the code, and
    disassemble; DeviceError for what cannot be."""
    compiled = nvrtc.resources(launch, capability) or nvrtc.compiled(launch, capability)
    functions = disassembled(compiled.cubin)
    return MachineCode(launch, capability, compiled, *functions[launch.function])


Listing = tuple[tuple[Instruction, ...], dict[str, int]]


@cache
def disassembled(cubin: bytes) -> dict[str, Listing]:
    """The functions of a cubin by name: their instructions, and the places of their labels."""
    path = program()
    if path is None:
        raise DeviceError(missing())
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [path, "-c", "-hex", "-ndf", file.name],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["no word"]
        raise DeviceError(f"nvdisasm failed: {words[-1]}")
    return parsed(done.stdout)


def parsed(text: str) -> dict[str, Listing]:
    """Parse nvdisasm's output."""
    found: dict[str, tuple[list[Instruction], dict[str, int]]] = {}
    code, labels = list[Instruction](), dict[str, int]()
    lines = iter(text.splitlines())
    for line in lines:
        if named := _FUNCTION.match(line):
            code, labels = found.setdefault(named[1], ([], {}))
        elif label := _LABEL.match(line):
            labels[label[1]] = code[-1].address + 16 if code else 0
        elif known := _LINE.match(line):
            upper = _WORD.search(next(lines))
            assert upper is not None, line
            code.append(_instruction(known, int(upper[1], 16)))
    return {name: (tuple(code), labels) for name, (code, labels) in found.items()}


def _instruction(line: re.Match[str], upper: int) -> Instruction:
    address, predicate, opcode, operands = line.groups()
    control = upper >> 41
    sets, target = control >> 5 & 7, _TARGET.search(operands)
    return Instruction(
        address=int(address, 16),
        predicate=predicate or "",
        opcode=opcode,
        operands=tuple(word.strip() for word in operands.split(",")) if operands else (),
        stall=control & 15,
        sets=None if sets == 7 else sets,
        waits=frozenset(i for i in range(SCOREBOARDS) if control >> 11 + i & 1),
        label=target[1] if target else "",
    )
