"""Wrong formulas, one file for each of the reference's."""
