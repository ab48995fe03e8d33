"""`ryz bench soak`."""
