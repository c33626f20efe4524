"""Formulas that are wrong, a file for each of the reference's."""
