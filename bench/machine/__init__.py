"""The machine: its probed limits, its identity, and other load on it."""
