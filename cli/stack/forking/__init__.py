"""Starts services by forking a process that has imported their modules: in milliseconds, sharing its memory.

`server.py` is that process, `client.py` the supervisor's side, `adopted.py` one service that was forked.
"""
