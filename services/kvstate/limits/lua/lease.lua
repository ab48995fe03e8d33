-- Takes what a holder has of each limit as the truth about it, then grants more; `MemoryLimitStore.lease` is
-- the same rule in Python.
-- ARGV: holder, number of the call, ms of a hold, ms for which a holder counts, number of pools, number of takes;
--   for each pool: name, limit, window of `had`, had, ahead, used, seen, number of times, times of windows;
--   for each take: count, number of pools, then a position (from 0) and units for each.
-- Answer: now, holders, then granted, left, begin and end of the window for each pool.
-- The hash of a window has the sum (`t`), what is used by other accounts (`f`), what holders have of which the
-- store has lost the count (`u`, in the sum), and for each holder what it has
-- (`h:`) and the number of its last call (`n:`). That of running requests has `h:`, `n:` and when they are free
-- again (`e:`).
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local holder, number, hold, keep = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local num_pools, num_takes = tonumber(ARGV[5]), tonumber(ARGV[6])
local at = 6
local function next_number()
  at = at + 1
  return tonumber(ARGV[at])
end
local function text(value) return string.format('%.0f', value) end

redis.call('ZREMRANGEBYSCORE', HOLDERS, '-inf', now - keep)
redis.call('ZADD', HOLDERS, now, holder)
redis.call('PEXPIRE', HOLDERS, keep)
local holders = redis.call('ZCARD', HOLDERS)

local mine_had, mine_number, mine_end = 'h:' .. holder, 'n:' .. holder, 'e:' .. holder

-- What other holders have running; those that are gone are forgotten.
local function running_elsewhere(key)
  local sum = 0
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 2) == 'h:' and field ~= mine_had then
      local name = string.sub(field, 3)
      local found = redis.call('HMGET', key, field, 'e:' .. name)
      if tonumber(found[2] or 0) <= now then
        redis.call('HDEL', key, field, 'e:' .. name, 'n:' .. name)
      else
        sum = sum + tonumber(found[1])
      end
    end
  end
  return sum
end

local pools = {}
for index = 1, num_pools do
  local pool = {name = ARGV[at + 1], granted = 0, began = 0, ends = 0}
  at = at + 1
  local limit, had_began, had = next_number(), next_number(), next_number()
  pool.ahead = next_number()
  local used, seen, num_times = next_number(), next_number(), next_number()
  local times = {}
  for time = 1, num_times do times[time] = next_number() end
  if num_times == 0 then
    pool.key, pool.life = LIMIT .. pool.name, 2 * hold
  else
    local which = 2
    if now < times[2] then which = 1 elseif now >= times[3] then which = 3 end
    pool.began, pool.ends = times[which], times[which + 1]
    if which ~= 2 then used = 0 end
    if had_began ~= 0 and had_began ~= pool.began then had = 0 end
    if had_began ~= pool.began then seen = 0 end
    pool.key = LIMIT .. pool.name .. ':' .. text(pool.began)
    pool.life = math.max(1, pool.ends - now) + keep
  end
  local found = redis.call('HMGET', pool.key, 't', 'f', mine_had, mine_number, 'u')
  local total, floor, before = tonumber(found[1] or 0), tonumber(found[2] or 0), tonumber(found[3] or 0)
  pool.late = tonumber(found[4] or 0) > number
  if pool.late then had = before end
  if num_times == 0 then
    total = running_elsewhere(pool.key) + had
  else
    local unknown = tonumber(found[5] or 0)
    if not found[1] then unknown = math.max(seen, had) end
    pool.unknown = unknown
    if not found[3] then pool.unknown = math.max(0, unknown - had) end
    if not found[1] then total = unknown end
    total = total - before + had - (unknown - pool.unknown)
    floor = math.max(floor, used)
  end
  pool.had, pool.total, pool.floor = had, total, floor
  pool.left = limit - math.max(total, floor)
  pools[index] = pool
end

local function grant(pool, units)
  pool.granted, pool.left = pool.granted + units, pool.left - units
end

for _ = 1, num_takes do
  local count, num_parts = next_number(), next_number()
  local parts = {}
  for part = 1, num_parts do
    local pool, units = pools[next_number() + 1], next_number()
    parts[part] = {pool, units}
    if units > 0 then count = math.min(count, math.floor(math.max(0, pool.left) / units)) end
    if pool.late then count = 0 end
  end
  for _, part in ipairs(parts) do grant(part[1], count * part[2]) end
end

local answer = {now, holders}
for _, pool in ipairs(pools) do
  if not pool.late then
    grant(pool, math.min(pool.ahead, math.floor(math.max(0, pool.left) / (PARTS * holders))))
    local had = pool.had + pool.granted
    redis.call('HSET', pool.key, mine_had, text(had), mine_number, text(number))
    if pool.ends == 0 then
      redis.call('HSET', pool.key, mine_end, text(now + hold))
    else
      redis.call('HSET', pool.key, 't', text(pool.total + pool.granted), 'f', text(pool.floor), 'u', text(pool.unknown))
    end
    redis.call('PEXPIRE', pool.key, pool.life)
  end
  answer[#answer + 1] = pool.granted
  answer[#answer + 1] = math.max(0, pool.left)
  answer[#answer + 1] = pool.began
  answer[#answer + 1] = pool.ends
end
return answer
