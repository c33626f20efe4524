"""Contenders in turns, their samples and rows."""
