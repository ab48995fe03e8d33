"""OpenAI's Responses API: bodies with their history, their translation, and events of answers."""
