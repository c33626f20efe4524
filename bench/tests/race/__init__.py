"""Interleaved contenders, their samples and rows."""
