"""`ryz sessions`: sessions over the HTTP API."""
