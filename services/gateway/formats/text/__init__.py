"""OpenAI's text completions: bodies, their translation, and answers, streamed and whole."""
