-- Stores a record within the tenant's quotas; `MemoryResponseStore.put` is the same rule in Python.
-- ARGV: tenant, id, ms to live, responses and bytes that the tenant may have, record, parent, ended (0 or 1),
--   new (0 or 1), owner, ms of its lease, size.
-- Answer: 1 (stored), 0 (the record there stays, or there is none to replace), 3 (over quota); how many went.
local tenant, id, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local max_count, max_bytes, size = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[12])
local key = key_of(tenant, id)
local found = redis.call('HMGET', key, 'e', 'r')
if found[1] == '1' then return {found[2] == ARGV[6] and 1 or 0, 0} end
if not found[1] and ARGV[9] == '0' then return {0, 0} end
local before = size_of(tenant, id)
redis.call('HSET', SIZES .. tenant, id, before)  -- a full Redis refuses this, before anything has changed
if before == 0 then redis.call('HDEL', SIZES .. tenant, id) end
purge(tenant)
before = size_of(tenant, id)
local count = redis.call('ZCARD', ENDS .. tenant) + 1 - max_count
if before > 0 then count = count - 1 end
local bytes = size_of(tenant, '') + size - before - max_bytes
local going, looked = {}, 0
while (count > 0 or bytes > 0) and looked < MAX_PURGED do  -- nearly always one goes for one that comes
  local till = math.min(MAX_PURGED, looked + math.max(PAGE, count))
  local page = redis.call('ZRANGE', ENDS .. tenant, looked, till - 1)
  if #page == 0 then break end
  for _, other in ipairs(page) do
    if count <= 0 and bytes <= 0 then break end
    if other ~= id and redis.call('HGET', key_of(tenant, other), 'e') ~= '0' then
      going[#going + 1] = other
      count, bytes = count - 1, bytes - size_of(tenant, other)
    end
  end
  looked = looked + #page
end
if count > 0 or bytes > 0 then return {3, 0} end
for _, other in ipairs(going) do drop(tenant, other) end
redis.call('HSET', key, 'r', ARGV[6], 'p', ARGV[7], 'e', ARGV[8], 'o', ARGV[10], 'l', now + ARGV[11], 't', now)
redis.call('PEXPIRE', key, ttl)
redis.call('ZADD', ENDS .. tenant, now + ttl, id)
redis.call('HSET', SIZES .. tenant, id, size)
redis.call('HINCRBY', SIZES .. tenant, '', size - before)
for _, name in ipairs({ENDS .. tenant, SIZES .. tenant}) do redis.call('PEXPIRE', name, 2 * ttl) end
if ARGV[8] == '0' then
  redis.call('ZADD', RUNNING, now + ARGV[11], tenant .. ' ' .. id)
else
  redis.call('ZREM', RUNNING, tenant .. ' ' .. id)
end
return {1, #going}
