"""A rank process: start, plans in, results out, and its end."""
