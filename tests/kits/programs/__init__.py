"""Starts programs of ours beside a test: by an interpreter of their own, or by a fork in long runs of tests.

`launch.py` is what kits call, `server.py` the process that programs are forked from, `client.py` what a test
has of one.
"""
