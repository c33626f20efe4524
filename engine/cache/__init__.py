"""What the KV cache holds: cells and their sequences, the text they are of, sessions on disk."""
