-- Pins a session to a group, or frees it.
-- ARGV: tenant, session id, group (empty: none), pins that the tenant may have, pins of all tenants,
--   time to live in ms, which a spare session gets when it is pinned.
-- Answer: 1; 0 when there is no session, 2 when the tenant has too many pins, 3 when all tenants together have.
local tenant, id, group = ARGV[1], ARGV[2], ARGV[3]
local key, member = SESSION .. tenant .. ':' .. id, ARGV[1] .. ' ' .. ARGV[2]
if redis.call('EXISTS', key) == 0 then return 0 end
if group == '' then
  redis.call('HDEL', key, 'p')
  redis.call('ZREM', PINS, member)
  return 1
end
local function pins() return redis.call('ZLEXCOUNT', PINS, '[' .. tenant .. ' ', '(' .. tenant .. '!') end
if not redis.call('ZSCORE', PINS, member) then
  if pins() >= tonumber(ARGV[4]) then
    purge(tenant)
    settle()
  end
  if pins() >= tonumber(ARGV[4]) then return 2 end
  if redis.call('ZCARD', PINS) >= tonumber(ARGV[5]) then return 3 end
end
redis.call('HSET', key, 'p', group)
redis.call('ZADD', PINS, 0, member)
if redis.call('ZREM', SPARE .. tenant, id) == 1 then
  redis.call('PEXPIRE', key, ARGV[6])
  redis.call('ZADD', ENDS .. tenant, now + ARGV[6], id)
end
return 1
