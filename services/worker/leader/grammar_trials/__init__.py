"""Compiles grammars on trial, in a process that can be killed, before the leader compiles them."""
