"""Command lines: options, alone and in groups, and llama.cpp's names for them."""
