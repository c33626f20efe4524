"""Anybody's kernels of an op, judged and timed in turns: who is right, and who is fastest."""
