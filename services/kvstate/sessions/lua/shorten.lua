-- Lets sessions live no longer than a time since their last turn, a page at a time. A pinned one lives that
-- long from now on at most: its pin may have prolonged its life.
-- ARGV: tenant, ms to live, sessions before this page in the order of their last turns, sessions of the page.
-- Answer: where the next page begins (-1: this was the last one), and how many sessions went.
local tenant, ttl, at, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ids = redis.call('ZRANGE', INDEX .. tenant, at, at + count - 1)
local kept, gone = 0, 0
for _, id in ipairs(ids) do
  local key = SESSION .. tenant .. ':' .. id
  local left = redis.call('PTTL', key)
  local ends = tonumber(redis.call('ZSCORE', INDEX .. tenant, id)) + ttl
  if redis.call('HEXISTS', key, 'p') == 1 then ends = now + ttl end
  if left == -2 or ends <= now then
    drop(tenant, id)
    if left ~= -2 then gone = gone + 1 end
  else
    kept = kept + 1
    if now + left > ends then
      redis.call('PEXPIRE', key, ends - now)
      redis.call('ZADD', ENDS .. tenant, 'XX', ends, id)
    end
  end
end
settle()
return {#ids < count and -1 or at + kept, gone}
