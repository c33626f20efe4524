"""Models larger than memory: which weights are read from disk, and when."""
