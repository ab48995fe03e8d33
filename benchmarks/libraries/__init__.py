"""Measures own code beside the libraries that do the same: `python -m benchmarks.libraries [PART ...]`.

Decision 0075 has what was measured, and why each of them is kept.
"""
