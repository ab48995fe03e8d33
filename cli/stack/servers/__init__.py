"""The broker and the Redis servers of a stack."""
