"""Typed request and reply calls: sessions, blocks, models, the fleet."""
