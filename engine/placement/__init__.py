"""Which neurons of a sparse model go to the GPU: statistics, budget, solver, the kept index."""
