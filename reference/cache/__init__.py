"""KV cache ops: write cells, score them, select and compact them, compress them into pages."""
