"""What is typed behind a command: options, alone and in groups, and llama.cpp's words for them."""
