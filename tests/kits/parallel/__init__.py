"""Runs tests in several processes that share one import of everything."""
