"""Shared by the benchmarks' tests: a browser, programs, synthetic results and files."""
