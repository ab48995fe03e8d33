"""Answers as typed parts: text, reasoning and tool calls, read from what the model writes."""
