"""A gateway in this process for tests, and HTTP by hand."""
