"""Models that are larger than memory: what of them is read from disk, and when."""
