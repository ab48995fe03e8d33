"""The connection to Redis and its circuit breaker."""
