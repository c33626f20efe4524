"""Samplers and logits processors, one op a file; removed tokens are -inf in inputs and outputs."""
