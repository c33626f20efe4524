"""Ops from other libraries: timed beside our kernels, and ranked on leaderboards."""
