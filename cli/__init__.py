"""The `ryz` command line. Start reading at `__main__.py`; `ryz up` is in `stack/`."""
