"""From the bytes of a request body to a checked model, within limits of size, values and time."""
