"""`ryz bus-users`: who has a user of its own on the broker, kept beside the stack's state."""
