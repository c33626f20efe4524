"""Definitions, solutions and traces as flashinfer-bench has them: read, judged, written."""
