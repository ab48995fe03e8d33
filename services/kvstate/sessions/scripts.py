"""The Lua scripts of sessions that run inside Redis. No call gets more than `MAX_ITEMS` sessions.

Their texts are in `lua/`, where each says what it takes and answers. In scripts that add something, the first
write is one that a full Redis refuses, so that they change nothing then.
"""

from services.kvstate.domain import keys
from services.kvstate.domain.session_quota import ID_COPIES, OVERHEAD
from services.kvstate.redis.lua_files import read_lua

MAX_ITEMS = 64
MAX_PURGED = 1000  # expired sessions in one call
MAX_SPARE = 1024  # spare sessions dropped for one record; more than any record of the default size needs
PAGE = 8  # of those that may be dropped, read at a time

_CONSTANTS = f"""
local SESSION, INDEX, GONE = '{keys.SESSION_PREFIX}', '{keys.INDEX_PREFIX}', '{keys.GONE_PREFIX}'
local SIZES, ENDS, SPARE = '{keys.SIZES_PREFIX}', '{keys.ENDS_PREFIX}', '{keys.SPARE_PREFIX}'
local DELETED, FLOOR, PINS = '{keys.DELETED_PREFIX}', '{keys.FLOOR_PREFIX}', '{keys.PINS}'
local TENANTS, OVERHEAD, ID_COPIES = '{keys.TENANTS}', {OVERHEAD}, {ID_COPIES}
local MAX_PURGED, MAX_SPARE, PAGE = {MAX_PURGED}, {MAX_SPARE}, {PAGE}
local function short(id) return string.sub(redis.sha1hex(id), 1, {keys.SHORT_CHARS}) end  -- see `keys.short`
"""
_PRELUDE = _CONSTANTS + read_lua(__package__, "prelude")

PUT = _PRELUDE + read_lua(__package__, "put")
READ = read_lua(__package__, "read")
DELETE = _PRELUDE + read_lua(__package__, "delete")
PIN = _PRELUDE + read_lua(__package__, "pin")
PINNED = read_lua(__package__, "pinned")
SHORTEN = _PRELUDE + read_lua(__package__, "shorten")
TALLY = _PRELUDE + read_lua(__package__, "tally")
