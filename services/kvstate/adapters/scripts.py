"""The Lua scripts of the register, which run inside Redis; their texts in `lua/` say what each takes."""

from services.kvstate.domain import keys
from services.kvstate.redis.lua_files import read_lua

_CONSTANTS = f"""
local NAMES, VERSION = '{keys.ADAPTERS}', '{keys.ADAPTERS_VERSION}'
local ADAPTER = '{keys.ADAPTER_PREFIX}'
"""


def _script(name: str) -> str:
    return _CONSTANTS + read_lua(__package__, "prelude") + read_lua(__package__, name)


PUT = _script("put")
DELETE = _script("delete")
PAGE = _script("page")
