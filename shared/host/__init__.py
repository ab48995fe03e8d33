"""This machine: its other users, its sockets, and how Python processes are started on it."""
