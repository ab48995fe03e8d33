"""The Lua script of leases, which runs inside Redis; its text in `lua/` says what it takes."""

from services.kvstate.domain import keys
from services.kvstate.redis.lua_files import read_lua

CLAIM = f"local LEASE = '{keys.LEASE_PREFIX}'\n" + read_lua(__package__, "claim")
