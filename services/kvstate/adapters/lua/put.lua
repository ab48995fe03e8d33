-- Stores an adapter; `MemoryAdapterStore.put` is the same rule in Python.
-- ARGV: base, name, fingerprint, identity, record, replace (0 or 1), most of a base, most of all.
-- Answer: verdict, the record that is there, version before, version.
local member = ARGV[1] .. ' ' .. ARGV[2]
local key = ADAPTER .. member
local found, before = redis.call('HMGET', key, 'f', 'i', 'r'), version()
if found[2] == ARGV[4] then return {'same', found[3], before, before} end
if found[1] and found[1] ~= ARGV[3] and ARGV[6] == '0' then return {'conflict', found[3], before, before} end
if not found[1] then
  local own = redis.call('ZLEXCOUNT', NAMES, '[' .. ARGV[1] .. ' ', '(' .. ARGV[1] .. '!')
  if own >= tonumber(ARGV[7]) then return {'base_full', false, before, before} end
  if redis.call('ZCARD', NAMES) >= tonumber(ARGV[8]) then return {'full', false, before, before} end
end
local after = next_version()  -- a full Redis refuses this, before anything has changed
redis.call('HSET', key, 'f', ARGV[3], 'i', ARGV[4], 'r', ARGV[5])
redis.call('ZADD', NAMES, 0, member)
return {'put', ARGV[5], before, after}
