"""The exchanges, one module for each API."""
