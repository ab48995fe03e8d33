"""Runs the whole stack on one machine: starts every process, keeps them alive, ends them in order.

Read `plan.py` (what runs), `stack.py` (start, supervise, drain), `process.py` (one child), `forking/` (how
it is started), `state.py` (what others may know of it).
"""
