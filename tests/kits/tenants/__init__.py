"""Ledgers, sums and limits for tests."""
