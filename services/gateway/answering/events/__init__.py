"""Answers as events: where they come from, what makes them, and readers that are too slow."""
