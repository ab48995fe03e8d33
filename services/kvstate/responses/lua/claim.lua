-- Gives responses whose leases have run out to an owner.
-- ARGV: owner, ms of the lease, how many. Answer: tenant and id of each, with a blank between them.
local answer = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', RUNNING, '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local key = RESPONSE .. string.gsub(member, ' ', ':', 1)
  local found = redis.call('HMGET', key, 'e', 'l')
  if found[1] == '0' then
    redis.call('HSET', key, 'o', ARGV[1], 'l', now + ARGV[2])
    redis.call('ZADD', RUNNING, now + ARGV[2], member)
    answer[#answer + 1] = member
  else
    redis.call('ZREM', RUNNING, member)
  end
end
return answer
