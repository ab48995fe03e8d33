"""The leader's side of adapters: loads, requests that cannot have theirs, and inspections of files."""
