"""The Lua scripts of responses, which run inside Redis; their texts in `lua/` say what each takes."""

from services.kvstate.domain import keys
from services.kvstate.redis.lua_files import read_lua
from services.kvstate.responses.store import MAX_PURGED

PAGE = 8  # of those that may go, read at a time

_CONSTANTS = f"""
local RESPONSE, RUNNING = '{keys.RESPONSE_PREFIX}', '{keys.RESPONSES_RUNNING}'
local SIZES, ENDS = '{keys.RESPONSE_SIZES_PREFIX}', '{keys.RESPONSE_ENDS_PREFIX}'
local MAX_PURGED, PAGE = {MAX_PURGED}, {PAGE}
"""


def _script(name: str) -> str:
    return _CONSTANTS + read_lua(__package__, "prelude") + read_lua(__package__, name)


PUT = _script("put")
GET = _script("get")
CHAIN = _script("chain")
LEASE = _script("lease")
CLAIM = _script("claim")
DELETE = _script("delete")
SHORTEN = _script("shorten")
