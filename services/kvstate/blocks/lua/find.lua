-- Counts the leading blocks that are stored, and leases them.
-- ARGV: names, ms of the lease, parts of a block that counts though it is not registered (0: none counts).
-- Answer: leading names that are stored, their bytes.
local names, lease, parts, found, bytes = split(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0
for place, raw in ipairs(redis.call('HMGET', META, unpack(names))) do
  if raw then
    if redis.call('EXISTS', DATA .. names[place]) == 0 then break end
    bytes = bytes + string.match(raw, '^%d+')
  elseif parts == 0 or redis.call('HLEN', DATA .. names[place]) ~= parts then
    break
  end
  found = place
end
if lease > 0 and found > 0 then
  local leases, over = {}, string.format('%.0f', now + lease)
  for place = 1, found do leases[2 * place - 1], leases[2 * place] = over, names[place] end
  redis.call('ZADD', LEASES, 'GT', unpack(leases))
end
return {found, bytes}
