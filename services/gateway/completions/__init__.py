"""OpenAI's chat and text completions: schema, translation, answers."""
