"""`ryz chat`: a conversation in the terminal."""
