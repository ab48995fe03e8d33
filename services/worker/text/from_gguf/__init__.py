"""Tokenizers, chat templates and end tokens from the metadata of GGUF files."""
