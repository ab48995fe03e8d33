"""Helpers for tests of the KV state service and its stores."""
