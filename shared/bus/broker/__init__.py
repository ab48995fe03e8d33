"""One connection to a NATS server: its transport, what is read from it and what is written to it."""
