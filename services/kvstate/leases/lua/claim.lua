-- Takes, prolongs or gives back a lease.
-- ARGV: name, holder, ms of the lease (0: it is given back), the highest epoch that the holder has heard of.
-- Answer: the holder, its epoch, the ms that are left.
-- The key stays when the lease ends: the next epoch must be higher. If it is lost, the time of day still is, and
-- what was heard also if the clock was set back. Then a lease lasts no longer than it was taken for, either.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local key = LEASE .. ARGV[1]
local found = redis.call('HMGET', key, 'h', 'e', 'u', 't')
local holder, epoch, ends = found[1] or '', tonumber(found[2] or 0), tonumber(found[3] or 0)
local most = tonumber(found[4] or 60000)
local ttl, heard = tonumber(ARGV[3]), tonumber(ARGV[4])
if ends > now + most then
  ends = now + most
  redis.call('HSET', key, 'u', ends)
end
if ends <= now then holder = '' end
if holder ~= '' and holder ~= ARGV[2] then return {holder, epoch, ends - now} end
if ttl == 0 then
  if holder ~= '' then redis.call('HSET', key, 'u', 0) end
  return {'', epoch, 0}
end
if holder == '' then
  epoch = math.max(epoch + 1, now, heard + 1)
elseif epoch < heard then
  epoch = heard + 1
end
redis.call('HSET', key, 'h', ARGV[2], 'e', epoch, 'u', now + ttl, 't', ttl)
return {ARGV[2], epoch, ttl}
