"""Adapters for tests: PEFT makes and computes them, and any compute is compared with it."""
