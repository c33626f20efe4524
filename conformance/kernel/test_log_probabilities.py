"""Plausible wrong codes and divergences are rejected; what is true of them is in
reference/laws/log_probabilities.py."""

from reference.op import Array

Coded = tuple[Array, Array]
