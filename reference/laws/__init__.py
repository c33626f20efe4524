"""What is true of each op beyond its formula: laws that a candidate is held to
(reference.op.Law)."""
