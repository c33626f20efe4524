"""Benchmarks: how long every kernel and the engine take, against the machine's limits and peers."""
