-- Makes a session hold exactly these blocks.
-- KEYS: also the holding of the session. ARGV: its member of holders, ms until the sweep looks after it, names.
local held = KEYS[7]
local lists, was, is, former = redis.call('HMGET', held, 'n', 'p'), {}, {}, {}
local before = split((lists[1] or '') .. (lists[2] or ''))
local _, seconds = usage(held)
for _, name in ipairs(before) do was[name] = true end
for _, name in ipairs(split(ARGV[5])) do
  if not was[name] and not is[name] then redis.call('HINCRBY', REFS, name, 1) end
  is[name] = true
end
for _, name in ipairs(before) do
  if is[name] then -- still held
  elseif redis.call('HEXISTS', META, name) == 1 then former[#former + 1] = name
  else unref(name) end
end
redis.call('HSET', held, 'n', ARGV[5], 'p', table.concat(former), 'b', count(split(ARGV[5])),
  's', string.format('%.3f', seconds), 'at', now, 'c', now)
redis.call('ZADD', HOLDERS, 'NX', now + ARGV[4], ARGV[3])
