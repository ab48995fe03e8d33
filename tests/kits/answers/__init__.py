"""Answers as models write them, in every known form, and what they mean."""
