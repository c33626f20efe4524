"""KV cache cells, policies, and sessions saved to files."""
