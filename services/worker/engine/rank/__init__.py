"""The rank process: its start, its loop of plans and results, its end."""
