"""This machine: its cores, memory, users and sockets, and how Python processes are started on it."""
