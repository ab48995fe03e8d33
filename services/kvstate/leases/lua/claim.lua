-- Takes, prolongs or gives back a lease.
-- ARGV: name, holder, ms of the lease (0: it is given back). Answer: the holder, its epoch, the ms that are left.
-- The key stays when the lease ends: the next epoch must be higher. If it is lost, the time of day still is.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local key = LEASE .. ARGV[1]
local found = redis.call('HMGET', key, 'h', 'e', 'u')
local holder, epoch, ends = found[1] or '', tonumber(found[2] or 0), tonumber(found[3] or 0)
local ttl = tonumber(ARGV[3])
if ends <= now then holder = '' end
if holder ~= '' and holder ~= ARGV[2] then return {holder, epoch, ends - now} end
if ttl == 0 then
  if holder ~= '' then redis.call('HSET', key, 'u', 0) end
  return {'', epoch, 0}
end
if holder == '' then epoch = math.max(epoch + 1, now) end
redis.call('HSET', key, 'h', ARGV[2], 'e', epoch, 'u', now + ttl)
return {ARGV[2], epoch, ttl}
