"""Spans of requests, made out of their timelines when they are over."""
