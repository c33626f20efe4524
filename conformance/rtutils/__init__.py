"""Cross-cutting rules: imports, tables, certificates, the memory plan."""
