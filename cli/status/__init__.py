"""`ryz status`: what all services and the supervisor report."""
