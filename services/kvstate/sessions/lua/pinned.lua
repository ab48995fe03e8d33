-- Lists pins.
-- KEYS: pins. ARGV: where to begin (as in ZRANGEBYLEX), how many, prefix of session keys.
-- Answer: member and group of each; the group of an expired session is empty, and it leaves the set.
local answer = {}
for i, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local group = redis.call('HGET', ARGV[3] .. string.gsub(member, ' ', ':', 1), 'p')
  if not group then redis.call('ZREM', KEYS[1], member) end
  answer[i] = {member, group or ''}
end
return answer
