"""What holds the rooms together: imports, tables, certificates."""
