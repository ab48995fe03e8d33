"""The Lua functions that the scripts of sessions begin with: what a tenant's sessions take, and how one goes.

All that is counted of a tenant changes in the script that changes the session: its bytes in one sum, by
`settle`, without which no script with `resize` or `drop` may end. Records that Redis lets expire are taken
off the account when the tenant writes at its quota, and by `TALLY` within seconds.
"""

from services.kvstate.domain import keys
from services.kvstate.domain.session_quota import ID_COPIES, OVERHEAD

MAX_PURGED = 1000  # expired sessions in one call
MAX_SPARE = 1024  # spare sessions that go for one record; more than any record of the default size needs

PRELUDE = (
    f"""
local SESSION, INDEX, GONE = '{keys.SESSION_PREFIX}', '{keys.INDEX_PREFIX}', '{keys.GONE_PREFIX}'
local SIZES, ENDS, SPARE = '{keys.SIZES_PREFIX}', '{keys.ENDS_PREFIX}', '{keys.SPARE_PREFIX}'
local DELETED, FLOOR, PINS = '{keys.DELETED_PREFIX}', '{keys.FLOOR_PREFIX}', '{keys.PINS}'
local TENANTS, OVERHEAD, ID_COPIES = '{keys.TENANTS}', {OVERHEAD}, {ID_COPIES}
local MAX_PURGED, MAX_SPARE = {MAX_PURGED}, {MAX_SPARE}
local function short(id) return string.sub(redis.sha1hex(id), 1, {keys.SHORT_CHARS}) end  -- see `keys.short`
"""
    + """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function size_of(tenant, id) return tonumber(redis.call('HGET', SIZES .. tenant, id) or 0) end

local found_bytes, found_sessions, changes = {}, {}, {}  -- by tenant: what Redis said, and bytes since then

local function bytes_of(tenant)
  found_bytes[tenant] = found_bytes[tenant] or size_of(tenant, '')
  return found_bytes[tenant] + (changes[tenant] or 0)
end

local function sessions_of(tenant)
  found_sessions[tenant] = found_sessions[tenant] or redis.call('ZCARD', ENDS .. tenant)
  return found_sessions[tenant]
end

local function resize(tenant, id, size, before)
  if size > 0 then
    redis.call('HSET', SIZES .. tenant, id, size)
  else
    redis.call('HDEL', SIZES .. tenant, id)
  end
  for _, who in ipairs({tenant, ''}) do changes[who] = (changes[who] or 0) + size - before end
end

local function settle()
  for who, change in pairs(changes) do
    if change ~= 0 and redis.call('HINCRBY', SIZES .. who, '', change) <= 0 then
      redis.call('HDEL', SIZES .. who, '')
    end
  end
end

local function drop(tenant, id)
  redis.call('DEL', SESSION .. tenant .. ':' .. id)
  redis.call('ZREM', INDEX .. tenant, id)
  local left = redis.call('ZREM', ENDS .. tenant, id)
  if found_sessions[tenant] then found_sessions[tenant] = found_sessions[tenant] - left end
  redis.call('ZREM', SPARE .. tenant, id)
  redis.call('ZREM', PINS, tenant .. ' ' .. id)
  resize(tenant, id, 0, size_of(tenant, id))
end

local function purge(tenant)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ENDS .. tenant, '-inf', now, 'LIMIT', 0, MAX_PURGED)) do
    drop(tenant, id)
  end
end

local function missing(tenant, before, size, max_sessions, max_bytes)
  local sessions, bytes = 0, 0
  if before == 0 then sessions = sessions_of(tenant) + 1 - max_sessions end
  if size > before then bytes = bytes_of(tenant) + size - before - max_bytes end
  return math.max(0, sessions), math.max(0, bytes)
end

local function make_room(tenant, id, size, max_sessions, max_bytes)
  local before = size_of(tenant, id)
  local sessions, bytes = missing(tenant, before, size, max_sessions, max_bytes)
  if sessions + bytes == 0 then return true, 0, before end
  redis.call('HSET', SIZES .. tenant, id, before)  -- a full Redis refuses this, before anything has changed
  if before == 0 then redis.call('HDEL', SIZES .. tenant, id) end
  purge(tenant)
  before = size_of(tenant, id)  -- it may have expired, too
  sessions, bytes = missing(tenant, before, size, max_sessions, max_bytes)
  local going = {}
  if sessions + bytes > 0 then
    for _, spare in ipairs(redis.call('ZRANGE', SPARE .. tenant, 0, MAX_SPARE - 1)) do
      if sessions <= 0 and bytes <= 0 then break end
      if spare ~= id then
        going[#going + 1] = spare
        sessions, bytes = sessions - 1, bytes - size_of(tenant, spare)
      end
    end
  end
  if sessions > 0 or bytes > 0 then return false, 0 end
  for _, spare in ipairs(going) do drop(tenant, spare) end
  return true, #going, before
end
"""
)
