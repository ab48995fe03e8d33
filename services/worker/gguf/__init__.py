"""Reads GGUF files without torch: header, metadata and table of tensors, for leader, ranks and `ryz`."""
