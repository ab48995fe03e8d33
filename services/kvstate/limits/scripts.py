"""The Lua script of limits, which runs inside Redis; its text in `lua/` says what it takes."""

from services.kvstate.domain import keys
from services.kvstate.redis.lua_files import read_lua
from shared.limits.portions import PARTS

LEASE = f"local LIMIT, HOLDERS, PARTS = '{keys.LIMIT_PREFIX}', '{keys.LIMIT_HOLDERS}', {PARTS}\n" + read_lua(
    __package__, "lease"
)
