"""Real Prometheus servers for tests: on live services, and on recorded scrapes."""
