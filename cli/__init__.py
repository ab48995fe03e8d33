"""The `ryz` command line. Start reading at `__main__.py`; what `ryz up` runs is in `supervisor/`."""
