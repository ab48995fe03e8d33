"""One generation on the client side: attempts, reordering, retries, and the stream of its caller."""
