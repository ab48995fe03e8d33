-- Deletes a session and leaves a tombstone.
-- Memory is freed first, since Redis may be full. Where there are too many tombstones, the oldest ones become
-- a time up to which all sessions that are not stored count as deleted.
-- ARGV: tenant, session id, ms that the tombstone stands, tombstones that a tenant may have.
-- Answer: 1, or 0 when there was no session.
local tenant, id, stands = ARGV[1], ARGV[2], tonumber(ARGV[3])
local there = redis.call('EXISTS', SESSION .. tenant .. ':' .. id)
drop(tenant, id)
settle()
if there == 0 then return 0 end
redis.call('SET', GONE .. tenant .. ':' .. short(id), now, 'PX', stands)
redis.call('ZREMRANGEBYSCORE', DELETED .. tenant, '-inf', now - stands)
redis.call('ZADD', DELETED .. tenant, now, short(id))
redis.call('PEXPIRE', DELETED .. tenant, stands)
local over = redis.call('ZCARD', DELETED .. tenant) - ARGV[4]
if over > 0 then
  local oldest = redis.call('ZRANGE', DELETED .. tenant, 0, math.min(over, MAX_PURGED) - 1, 'WITHSCORES')
  for at = 1, #oldest, 2 do
    redis.call('DEL', GONE .. tenant .. ':' .. oldest[at])
    redis.call('ZREM', DELETED .. tenant, oldest[at])
  end
  redis.call('SET', FLOOR .. tenant, oldest[#oldest], 'PX', stands)
end
return 1
