"""Compiles, loads and runs shares: the team of threads, its programs, readers of files."""
