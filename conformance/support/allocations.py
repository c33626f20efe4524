"""Memory allocated by a call."""

import tracemalloc

from numba.core.runtime import rtsys

from engine.model import Model


def allocations(model: Model) -> tuple[int, int]:
    """Peak bytes of Python's heap, and NRT's allocations, of running a prepared step once."""
    tracemalloc.start()
    before = rtsys.get_allocation_stats()
    model.team.run(model.plan.program)
    peak = tracemalloc.get_traced_memory()[1]
    after = rtsys.get_allocation_stats()
    tracemalloc.stop()
    return peak, after.alloc - before.alloc
