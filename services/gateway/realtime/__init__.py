"""A WebSocket on which many requests run at once; each is answered by the HTTP route that it names."""
