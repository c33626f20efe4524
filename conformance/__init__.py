"""What can fail a kernel or the engine."""
