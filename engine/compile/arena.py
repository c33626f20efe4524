"""Memory of a step's activations: one arena, in which values whose lifetimes do not overlap share
memory."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from engine.graph import Value
from kernels.cpu.isa.simd import CACHE_LINE


def place(
    moments: Sequence[Iterable[Value]],
    limits: Mapping[str, int],
    keep: Collection[Value] = (),
    multiple: int = CACHE_LINE,
) -> tuple[dict[str, int], int]:
    """Offsets of the activations, given the values that the step touches moment by moment, and the
    arena's size, in bytes.

    First fit by lifetime: memory is reused once the last reader has run, so a value last touched at
    moment i frees its memory for values of moment i + 1. Values in `keep` live to the end. Values
    are aligned to `multiple` bytes.
    """
    touched = [list(values) for values in moments]
    last = {value.name: i for i, values in enumerate(touched) for value in values}
    last |= {value.name: len(touched) for value in keep}
    offsets: dict[str, int] = {}
    live: list[tuple[int, int, int]] = []  # (begin, end, last moment), sorted
    size = 0
    for i, values in enumerate(touched):
        live = [block for block in live if block[2] >= i]
        for value in values:
            if value.kind != "activation" or value.name in offsets:
                continue
            wanted = -(-value.bytes(limits) // multiple) * multiple
            begin = 0
            for other_begin, other_end, _ in live:
                if begin + wanted <= other_begin:
                    break
                begin = max(begin, other_end)
            live = sorted([*live, (begin, begin + wanted, last[value.name])])
            offsets[value.name] = begin
            size = max(size, begin + wanted)
    return offsets, size
