"""Speculative decoding: drafters, verification, and texts that stay the target's."""
