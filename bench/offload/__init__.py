"""Models that are larger than the memory they may use: how fast they run, and what binds them."""
