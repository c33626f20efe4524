"""GGUF files: read, written, edited."""
