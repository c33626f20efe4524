"""Checkpoints to GGUF files."""
