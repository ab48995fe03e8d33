-- Counts what sessions hold.
-- KEYS: also holdings. Answer: bytes, blocks and byte-seconds, as text, of each.
local answer = {}
for place = 7, #KEYS do
  local names, seconds = usage(KEYS[place])
  local bytes, blocks = count(names)
  answer[#answer + 1] = {bytes, blocks, string.format('%.3f', seconds)}
end
return answer
