"""Ops on one token's logits."""
