"""Integer and float schemes beyond GGUF's blocks, on the CPU."""
