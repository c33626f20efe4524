"""Cells, and sessions that outlive a process."""
