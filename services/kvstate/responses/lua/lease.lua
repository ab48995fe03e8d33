-- Gives a response that has not ended to an owner.
-- ARGV: tenant, id, owner, ms of the lease, takes over (0 or 1). Answer: 1, or 0 if another has it or it ended.
local key = key_of(ARGV[1], ARGV[2])
local found = redis.call('HMGET', key, 'e', 'l', 'o')
if found[1] ~= '0' then return 0 end
if ARGV[5] == '0' and found[3] ~= ARGV[3] and not is_free(found) then return 0 end
redis.call('HSET', key, 'o', ARGV[3], 'l', now + ARGV[4])
redis.call('ZADD', RUNNING, now + ARGV[4], ARGV[1] .. ' ' .. ARGV[2])
return 1
