"""All-reduce, gather and broadcast between ranks; `base.py` has the contract of the backends."""
