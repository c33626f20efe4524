"""A conversation on the terminal: its messages, what is typed, and commands within it."""
