"""Speculative decoding: drafts, and that the text is the target's own."""
