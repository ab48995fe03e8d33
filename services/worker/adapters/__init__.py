"""Adapter files: PEFT directories and GGUF files, read and checked without torch."""
