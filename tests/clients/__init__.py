"""Client libraries of others against a stack with a real model; `make test-clients` runs them."""
