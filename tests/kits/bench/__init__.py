"""What tests of benchmarks measure in place of a stack."""
