"""Every edit, one row each in the file of its kind."""

from conformance.cuda.edits import (
    attention,
    choices,
    coding,
    elements,
    fused,
    neurons,
    products,
    rows,
)
from conformance.cuda.edits.edit import Edit

EDITS: tuple[Edit, ...] = (
    *rows.EDITS,
    *elements.EDITS,
    *coding.EDITS,
    *choices.EDITS,
    *products.EDITS,
    *neurons.EDITS,
    *attention.EDITS,
    *fused.EDITS,
)
