-- Registers blocks of a sequence and counts them as used.
-- ARGV: names, parts, tenant, ms of priority, ms of depth for each block, blocks before the first, ms that the
--   bytes live from now on.
-- Answer: sizes (-1: not stored), whether each is new, bytes of the tenant, bytes of all.
local names, parts, tenant, sizes, fresh, tenants = split(ARGV[3]), tonumber(ARGV[4]), ARGV[5], {}, {}, {}
local priority, depth, before = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])

local function measure(key)
  local size = 0
  for part = 0, parts - 1 do
    local length = redis.call('HSTRLEN', key, part)
    if length == 0 then return -1 end
    size = size + length
  end
  return size
end

for place, name in ipairs(names) do
  local key, raw = DATA .. name, redis.call('HGET', META, name)
  sizes[place], fresh[place] = -1, 0
  if redis.call('HLEN', key) == parts then
    if raw then
      local size, _, owner = facts(raw)
      sizes[place], tenants[place] = size, owner
    else
      sizes[place] = measure(key)
      if sizes[place] >= 0 then
        redis.call('HSET', META, name, string.format('%.0f:%d:%.0f:%s', sizes[place], parts, now, tenant))
        fresh[place], tenants[place] = 1, tenant
        note(tenant, sizes[place], 1)
      end
    end
    if tenants[place] then redis.call('PEXPIRE', key, ARGV[9]) end
  elseif raw then
    unregister(name)
  end
end
touch(names, #names, function(place) return priority - depth * (before + place - 1) end, tenants)
settle()
return {sizes, fresh, (account(tenant)), (account(''))}
