"""Engine benchmarks in turns with peers, and profiles of a step."""
