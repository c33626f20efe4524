"""Disks that fail or are full, files that change, and what the system keeps of them."""
