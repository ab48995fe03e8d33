"""Streams, faults, storms and fuzzers for the chaos tests."""
