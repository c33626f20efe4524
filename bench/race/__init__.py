"""Contenders in turns: samples, ratios, rows of results and their frames."""
