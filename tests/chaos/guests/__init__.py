"""Servers of guests that are killed, stopped and cut off while they stream."""
