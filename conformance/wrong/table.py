"""Every planted bug, one row each in the file of its kind."""

from conformance.wrong import (
    attention,
    memory,
    neurons,
    normalisation,
    schemes,
    verification,
    weights,
)
from conformance.wrong.wrong import Wrong

PLANTED: tuple[Wrong, ...] = (
    *normalisation.BUGS,
    *weights.BUGS,
    *schemes.BUGS,
    *attention.BUGS,
    *memory.BUGS,
    *neurons.BUGS,
    *verification.BUGS,
)
