"""Reads, writes and edits GGUF files."""
