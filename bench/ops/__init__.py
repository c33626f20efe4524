"""One op at the sizes of models: cases, inputs, and kernels ready to be timed."""
