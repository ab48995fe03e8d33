"""Errors as callers see them: refusals, their shapes and words, and how a call ended."""
