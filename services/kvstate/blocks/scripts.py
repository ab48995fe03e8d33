"""The Lua scripts of KV blocks that run inside Redis. Keys that they need are computed: no Redis Cluster.

Their texts are in `lua/`, where each says what it takes and answers. All take the same first keys and values
(`lua/prelude.lua`), and Redis's clock.

Redis at its `maxmemory` refuses a script's first write if that could grow, so scripts that add change nothing
then; those that free begin with a write that is never refused, after which Redis refuses none.
"""

from services.kvstate.redis.lua_files import read_lua

_PRELUDE = read_lua(__package__, "prelude")

FIND = _PRELUDE + read_lua(__package__, "find")
REGISTER = _PRELUDE + read_lua(__package__, "register")
HOLD = _PRELUDE + read_lua(__package__, "hold")
EVICT = _PRELUDE + read_lua(__package__, "evict")
FORGET = _PRELUDE + read_lua(__package__, "forget")
RELEASE = _PRELUDE + read_lua(__package__, "release")
USAGE = _PRELUDE + read_lua(__package__, "usage")
TOTALS = _PRELUDE + read_lua(__package__, "totals")
DUE_HOLDERS = _PRELUDE + read_lua(__package__, "due_holders")
CHECK_HOLDERS = _PRELUDE + read_lua(__package__, "check_holders")
RECONCILE = _PRELUDE + read_lua(__package__, "reconcile")
