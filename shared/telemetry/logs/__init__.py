"""Log lines of all processes: their set-up, their fields, and the limits that floods meet."""
