-- Functions that the scripts of responses begin with. Names in capitals are constants from
-- `response_scripts.py`. A tenant's account changes in the script that changes a record.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function key_of(tenant, id) return RESPONSE .. tenant .. ':' .. id end
local function size_of(tenant, id) return tonumber(redis.call('HGET', SIZES .. tenant, id) or 0) end

-- Takes a record and all that is known of it away.
local function drop(tenant, id)
  redis.call('DEL', key_of(tenant, id))
  redis.call('ZREM', ENDS .. tenant, id)
  redis.call('ZREM', RUNNING, tenant .. ' ' .. id)
  local size = size_of(tenant, id)
  redis.call('HDEL', SIZES .. tenant, id)
  if size > 0 and redis.call('HINCRBY', SIZES .. tenant, '', -size) <= 0 then
    redis.call('HDEL', SIZES .. tenant, '')
  end
end

local function purge(tenant)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', ENDS .. tenant, '-inf', now, 'LIMIT', 0, MAX_PURGED)) do
    drop(tenant, id)
  end
end

local function is_free(found)  -- of 'e' (ended) and 'l' (end of the lease)
  return found[1] == '0' and tonumber(found[2] or 0) <= now
end
