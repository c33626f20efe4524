"""GGUF files: read, written, refused."""
