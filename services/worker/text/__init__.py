"""Tokenizers, chat templates and the detokenizer. No torch."""
