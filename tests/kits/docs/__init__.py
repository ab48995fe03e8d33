"""Runs the commands of pages and compares what they show."""
