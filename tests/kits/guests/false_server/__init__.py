"""A server of completions that answers by a script, well or badly.

The next token of a sequence of n tokens is the n-th one of an endless answer, as with the null engine: an
answer that goes on elsewhere has one right end. `behaviours.py` lists all that it can do wrong.
"""
