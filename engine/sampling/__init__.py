"""From logits to a token: parameters, the chain of samplers, and what it remembers."""
