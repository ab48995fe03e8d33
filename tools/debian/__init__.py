"""Programs of the distribution that tests need."""
