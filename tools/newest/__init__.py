"""Tries the newest versions of libraries that own code replaces or extends: `make newest`.

Such code uses private names, or writes what a library writes as well (decision 0075). So pyproject.toml has
upper bounds of these libraries, and this says whether they can be raised.
"""
