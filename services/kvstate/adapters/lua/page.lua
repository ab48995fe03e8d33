-- Lists adapters.
-- ARGV: the last member of the page before (empty: from the beginning), bytes that a page has room for, the
--   version that is known. Answer: version, the last member if there are more, records.
local now = version()
local answer = {now, ''}
if ARGV[1] == '' and tonumber(ARGV[3]) == now then return answer end
local from, room = ARGV[1] == '' and '-' or '(' .. ARGV[1], tonumber(ARGV[2])
local last = ''
for _, member in ipairs(redis.call('ZRANGEBYLEX', NAMES, from, '+', 'LIMIT', 0, 1000)) do
  local record = redis.call('HGET', ADAPTER .. member, 'r')
  room = room - #record
  if room < 0 and #answer > 2 then break end
  answer[#answer + 1], last = record, member
end
if last ~= '' and #redis.call('ZRANGEBYLEX', NAMES, '(' .. last, '+', 'LIMIT', 0, 1) > 0 then answer[2] = last end
return answer
