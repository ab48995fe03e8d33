-- Removes an adapter.
-- ARGV: base, name. Answer: verdict, the record that was there, version before, version.
local member = ARGV[1] .. ' ' .. ARGV[2]
local record, before = redis.call('HGET', ADAPTER .. member, 'r'), version()
if not record then return {'same', false, before, before} end
local after = next_version()
redis.call('DEL', ADAPTER .. member)
redis.call('ZREM', NAMES, member)
return {'put', record, before, after}
