-- Removes facts without bytes, and lets bytes without facts expire.
-- ARGV: names, ms that bytes without facts live. Answer: blocks whose bytes were gone.
local names, lost, limit = split(ARGV[3]), 0, tonumber(ARGV[4])
for _, name in ipairs(names) do
  local key, raw = DATA .. name, redis.call('HGET', META, name)
  local parts = redis.call('HLEN', key)
  if raw then
    local _, wanted, tenant = facts(raw)
    if parts ~= wanted then
      unregister(name)
      lost, raw = lost + 1, false
    elseif not redis.call('ZSCORE', ORDER, name) then
      redis.call('ZADD', ORDER, now, name)
      redis.call('ZADD', TENANT_ORDER .. tenant, now, name)
    end
  end
  if not raw and parts > 0 then
    local left = redis.call('PTTL', key)
    if left < 0 or left > limit then redis.call('PEXPIRE', key, limit) end
  end
end
settle()
return lost
