"""How fast this machine can be at most, what it is, and who else is at work."""
