"""Samplers on the CPU. One sequence's logits are one thread's work; the others return at once."""
