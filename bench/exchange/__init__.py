"""flashinfer-bench's definitions, solutions and traces: read, judged, written."""
