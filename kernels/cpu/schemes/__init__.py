"""Integer and float quantisation schemes beyond GGUF's blocks, on the CPU."""
