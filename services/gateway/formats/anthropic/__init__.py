"""Anthropic's Messages API: bodies, their translation, answers as content blocks, streamed and whole."""
