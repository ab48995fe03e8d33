"""Flow control that several services use: back-off, circuit breaker, fair shares of tenants. Pure."""
