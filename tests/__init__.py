"""Tests: unit (pure, in memory), contract (every implementation of a port), integration, e2e, chaos, gpu."""
