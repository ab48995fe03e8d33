-- Counts keys of each kind in one step of a scan.
-- ARGV: the scan's cursor (0 to begin), about how many keys this step visits.
-- Answer: the next cursor (0 at the end); then how many sessions, responses and tombstones.
local PREFIXES = {SESSION, RESPONSE, GONE}
local found = redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2])
local counts = {0, 0, 0}
for _, key in ipairs(found[2]) do
  for at, prefix in ipairs(PREFIXES) do
    if string.sub(key, 1, #prefix) == prefix then counts[at] = counts[at] + 1 end
  end
end
return {found[1], unpack(counts)}
