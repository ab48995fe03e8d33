"""Formats: bytes of bodies become calls, and parts of answers become bytes. None knows a transport."""
