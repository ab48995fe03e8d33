"""`ryz explain`: where the time of one request went, from the services' own records."""
