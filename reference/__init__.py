"""What is true: every op as its formula, in NumPy and float64, slow and readable."""
