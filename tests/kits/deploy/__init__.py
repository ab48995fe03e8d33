"""Tools for tests of what is in `deploy/`."""
