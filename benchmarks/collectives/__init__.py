"""The all-reduce between ranks, each backend beside a memory copy."""
