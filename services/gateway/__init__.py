"""HTTP in front of the bus: OpenAI's routes, keys, limits and shapes. Start reading at `app.py`."""
