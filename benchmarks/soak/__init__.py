"""A stack under mixed load and random faults for hours: how available it is, and what it leaves behind."""
