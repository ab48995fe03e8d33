"""OpenAI's Responses API: requests, events, stored and background responses, WebSocket mode."""
