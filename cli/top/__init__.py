"""`ryz top`: the fleet live in the terminal."""
