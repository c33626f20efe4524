"""The command line: options, output and errors."""
