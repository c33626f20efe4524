"""Leaderboards: third-party kernels of an op, judged and timed in turns."""
