"""`ryz bench serving`, and the peer that it measures."""
