"""Stand-ins for a stack in tests of the benchmarks."""
