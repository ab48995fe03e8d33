"""`ryz bench`: options, progress and tables around the benchmarks."""
