"""What was measured, as a page to look at and as Markdown: `assay report`."""
