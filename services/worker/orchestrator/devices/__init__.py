"""Finds ranks whose device is ill or slow: readings of NVML, and the ranks' own step times."""
