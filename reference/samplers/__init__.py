"""What a sampler does to logits, one op a file; removed tokens are -inf in and out."""
