"""Samplers on the CPU. One sequence's logits are processed by one thread; the others return at
once."""
