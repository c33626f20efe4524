"""Where the activations of a step lie: in one arena, each in memory that others have done with."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from engine.graph import Value
from kernels.cpu.isa.simd import CACHE_LINE


def place(
    moments: Sequence[Iterable[Value]],
    limits: Mapping[str, int],
    keep: Collection[Value] = (),
    multiple: int = CACHE_LINE,
) -> tuple[dict[str, int], int]:
    """Offsets of the activations among the values that a step touches moment by moment, and the
    arena's size, in bytes.

    First fit by lifetime: memory is reused as soon as the last reader has run, so a value that
    moment i touches frees its place for values of moment i + 1. What is in `keep` lives to the end.
    Values begin at a `multiple` of bytes.
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
