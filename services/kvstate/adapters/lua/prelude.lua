-- A member of NAMES is the base and the name, with a space between; neither contains one.
local function version()
  return tonumber(redis.call('HGET', VERSION, 'v') or 0)
end

-- The next version is higher than all before, also after a loss of the store: the time of day is not lost.
local function next_version()
  local clock = redis.call('TIME')
  local after = math.max(version() + 1, clock[1] * 1000 + math.floor(clock[2] / 1000))
  redis.call('HSET', VERSION, 'v', string.format('%.0f', after))
  return after
end
