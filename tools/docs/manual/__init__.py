"""Checks of pages that are written by hand: their commands, the figures of sizing, the messages of errors."""
