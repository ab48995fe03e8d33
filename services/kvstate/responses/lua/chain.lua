-- Reads a record and those before it, and lets them live as long as new ones.
-- ARGV: tenant, id, bytes after which the answer ends, records in it, ms to live.
-- Answer: where to go on, the missing response (both may be empty), then the records.
local tenant, id, room, limit, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local answer = {'', ''}
while id ~= '' do
  local key = key_of(tenant, id)
  local found = redis.call('HMGET', key, 'r', 'p')
  if not found[1] then
    answer[2] = id
    break
  end
  if #answer > 2 and (#found[1] > room or #answer - 2 >= limit) then
    answer[1] = id
    break
  end
  redis.call('HSET', key, 't', now)
  redis.call('PEXPIRE', key, ttl)
  redis.call('ZADD', ENDS .. tenant, now + ttl, id)
  answer[#answer + 1] = found[1]
  room, id = room - #found[1], found[2]
end
for _, name in ipairs({ENDS .. tenant, SIZES .. tenant}) do redis.call('PEXPIRE', name, 2 * ttl) end
return answer
