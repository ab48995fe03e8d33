"""Connections to Redis: pool, time limit, circuit breaker, errors, scripts."""
