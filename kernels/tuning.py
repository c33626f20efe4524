"""What is chosen for a kernel's knobs: at first what a table says of a family of CPUs, then what
was measured here.

What was measured is kept as JSON lines beside the certificates. It is bound to the kernel's machine
code, the machine, the number of threads and the sizes of the node.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from kernels.cache import append, read_all
from kernels.certificates import code_of, shares_of
from kernels.kernel import Kernel
from kernels.knob import Values
from kernels.provenance import cpu_features, machine
from kernels.table import KERNELS, find

Key = tuple[str, str, str, int, str]  # kernel, its machine code, machine, threads, sizes
KEPT, STARTING = "tunings.jsonl", "starting_values.json"


@cache
def _starting() -> list[dict[str, Any]]:
    return list(json.loads(files("kernels").joinpath(STARTING).read_text()))


def starting(kernel: Kernel, features: frozenset[str] | None = None) -> dict[str, int]:
    """What a kernel's knobs begin with on a CPU with these features, by default this one: what the
    table says of the first family whose features it has, for the longest part of the kernel's
    name, e.g. of linear/cpu/amx for linear/cpu/amx/Q4_0."""
    found = {knob.name: knob.default for knob in kernel.knobs}
    has = cpu_features() if features is None else features
    families = [row["values"] for row in _starting() if has.issuperset(row["features"])]
    table: dict[str, dict[str, int]] = next(iter(families), {})
    for part in sorted((p for p in table if f"{kernel.name}/".startswith(f"{p}/")), key=len):
        found |= _tried(kernel, table[part])
    return found


def _tried(kernel: Kernel, values: Values) -> dict[str, int]:
    """Those that are its knobs' and that its trial may have drawn."""
    allowed = {knob.name: knob.values for knob in kernel.knobs}
    return {name: value for name, value in values.items() if value in allowed.get(name, ())}


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was found for a kernel at a node's sizes: the `values` of its knobs, and how many times
    as fast they were as those it began with for a single token; `spread` is the least and the most
    that any turn of the measurement gave, `gains` the same of knobs that were changed, each by
    itself and in the steps in which it shows."""

    kernel: str
    code: str
    machine: str
    threads: int
    shape: str
    values: dict[str, int]
    gain: float
    spread: tuple[float, float]
    when: str
    gains: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return self.kernel, self.code, self.machine, self.threads, self.shape


def changes(tuned: Tuned) -> str:
    """The values of its knobs in words; where one differs, with the value it began with, and how
    many times as fast it made the steps in which it shows."""
    before = starting(find(tuned.kernel))

    def instead(name: str) -> str:
        gained = f", {tuned.gains[name]:.2f} x" if name in tuned.gains else ""
        return f" ({before[name]}{gained})" if tuned.values[name] != before[name] else ""

    return " ".join(f"{name}={value}{instead(name)}" for name, value in tuned.values.items())


def shape_text(shape: Mapping[str, int]) -> str:
    """A node's sizes in one word, e.g. hidden=2048,out=5632."""
    return ",".join(f"{axis}={size}" for axis, size in sorted(shape.items()))


def key_of(kernel: Kernel, shape: Mapping[str, int], threads: int) -> Key:
    """What a Tuned is found by, for what this process would run."""
    return kernel.name, code_of(kernel), machine(), threads, shape_text(shape)


def load() -> dict[Key, Tuned]:
    """All that is kept, the last for each key. Damaged lines are none."""
    found: dict[Key, Tuned] = {}
    for data in [*read_all(KEPT)][::-1]:
        for line in data.decode(errors="replace").splitlines():
            try:
                one = Tuned(**json.loads(line))
                found[one.key] = one
            except (ValueError, TypeError):
                continue
    return found


def current() -> list[Tuned]:
    """What is kept of kernels that are still as they were, in the order of their names."""
    known = load()
    names = {tuned.kernel for tuned in known.values() if tuned.machine == machine()}
    kept = (k for k in KERNELS if k.name in names and all(s.is_kept for s in shares_of(k)))
    code = {kernel.name: code_of(kernel) for kernel in kept}
    found = (tuned for tuned in known.values() if code.get(tuned.kernel) == tuned.code)
    return sorted(found, key=lambda tuned: tuned.key)


def keep(found: Sequence[Tuned]) -> None:
    """Append these to what is kept."""
    if found:
        append(KEPT, "".join(json.dumps(asdict(one)) + "\n" for one in found).encode())


def chosen(
    kernel: Kernel,
    shape: Mapping[str, int],
    threads: int,
    known: Mapping[Key, Tuned],
) -> Values:
    """The values that a node's kernel runs with: what was measured, or what it begins with."""
    values = starting(kernel)
    if found := known.get(key_of(kernel, shape, threads)):
        values |= _tried(kernel, found.values)
    return values
