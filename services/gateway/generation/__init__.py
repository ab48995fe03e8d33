"""What all routes that generate share; `door.py` is the port to the formats of bodies and answers."""
