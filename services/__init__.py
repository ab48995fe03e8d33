"""The four services. Each is a package with a `__main__.py`; none imports another."""
