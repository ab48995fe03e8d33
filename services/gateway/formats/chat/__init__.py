"""OpenAI's chat completions: bodies, their translation, and answers, streamed and whole."""
