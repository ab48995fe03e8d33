"""The agent of this host: reports what the stack offers and runs, and starts and ends groups on command."""
