-- Functions that the scripts of sessions begin with: what a tenant's sessions take, and how one is dropped.
-- The names in capitals are constants from `session_scripts.py`.
--
-- All that is counted of a tenant changes in the script that changes the session: its bytes in one sum, by
-- `settle`, which ends every script that calls `resize` or `drop`. Records that Redis lets expire leave the
-- account when the tenant writes at its quota, and by tally.lua within seconds.
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
  local going, looked = {}, 0
  while (sessions > 0 or bytes > 0) and looked < MAX_SPARE do  -- nearly always one goes for one that comes
    local till = math.min(MAX_SPARE, looked + math.max(PAGE, sessions))
    local page = redis.call('ZRANGE', SPARE .. tenant, looked, till - 1)
    if #page == 0 then break end
    for _, spare in ipairs(page) do
      if sessions <= 0 and bytes <= 0 then break end
      if spare ~= id then
        going[#going + 1] = spare
        sessions, bytes = sessions - 1, bytes - size_of(tenant, spare)
      end
    end
    looked = looked + #page
  end
  if sessions > 0 or bytes > 0 then return false, 0 end
  for _, spare in ipairs(going) do drop(tenant, spare) end
  return true, #going, before
end
