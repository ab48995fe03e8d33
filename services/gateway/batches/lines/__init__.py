"""The lines of input, output and error files."""
