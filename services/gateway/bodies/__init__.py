"""Bodies of requests: reading and parsing them within limits of size, values and time."""
