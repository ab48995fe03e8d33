-- Reads summaries.
-- KEYS: the index, then session keys. ARGV: the session ids.
-- Answer: summary, ms to live and pin of each. An expired session has no summary and leaves the index.
local answer = {}
for i = 2, #KEYS do
  local found = redis.call('HMGET', KEYS[i], 's', 'p')
  if found[1] then
    answer[#answer + 1] = {found[1], redis.call('PTTL', KEYS[i]), found[2] or ''}
  else
    redis.call('ZREM', KEYS[1], ARGV[i - 1])
    answer[#answer + 1] = {'', 0, ''}
  end
end
return answer
