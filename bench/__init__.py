"""A duration: benchmarks live here; today `assay op` times one op and `assay run` a generation."""
