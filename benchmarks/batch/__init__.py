"""What a batch costs interactive requests."""
