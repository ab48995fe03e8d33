"""A recorded corpus of exchanges through every transport, and what records and compares it.

`tables/` has the exchanges as data, `senders/` the transports, `recorded/` what the gateway answered. The
gateway is a process of its own and is spoken to from outside only, so that no change within it changes this.
"""
