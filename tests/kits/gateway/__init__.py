"""A gateway in the test's process, and a raw HTTP client."""
