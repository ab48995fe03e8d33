"""Leaders, schedulers and ranks of one group, for tests."""
