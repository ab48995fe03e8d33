-- Lets ended records live no longer than a time since they were put or last continued, a page at a time.
-- ARGV: tenant, ms to live, records before this page in the order of their ends, records of the page.
-- Answer: where the next page begins (-1: this was the last one), and how many records went.
local tenant, ttl, at, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ids = redis.call('ZRANGE', ENDS .. tenant, at, at + count - 1)
local kept, gone = 0, 0
for _, id in ipairs(ids) do
  local key = key_of(tenant, id)
  local found = redis.call('HMGET', key, 'e', 't')
  local ends = tonumber(found[2] or now) + ttl  -- without a time: an earlier version put it
  if not found[1] or (found[1] == '1' and ends <= now) then
    drop(tenant, id)
    if found[1] then gone = gone + 1 end
  else
    kept = kept + 1
    if found[1] == '1' and ends < tonumber(redis.call('ZSCORE', ENDS .. tenant, id)) then
      redis.call('PEXPIRE', key, ends - now)
      redis.call('ZADD', ENDS .. tenant, ends, id)  -- which moves it before those of later pages only
    end
  end
end
return {#ids < count and -1 or at + kept, gone}
