"""Reports of measurements, as an HTML page and as Markdown: `assay report`."""
