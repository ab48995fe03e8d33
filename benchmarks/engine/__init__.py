"""The engine: batches of one size at a time, alone, beside peers, and through HTTP."""
