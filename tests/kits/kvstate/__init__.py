"""The KV state service and its stores for tests."""
