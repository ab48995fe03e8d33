"""WebSockets: many requests at once on `/v1/realtime`, and the WebSocket mode of `/v1/responses`."""
