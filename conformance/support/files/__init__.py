"""Disks that fail or are full, files that change, and the page cache."""
