"""Tests of whole stacks with injected faults, which may cost only time."""
