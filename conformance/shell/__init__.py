"""The program: what one types, and what it says."""
