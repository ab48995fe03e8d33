-- Deletes blocks by score.
-- KEYS: also the order to follow. ARGV: bytes to free, blocks to delete at most, blocks to look at at most,
--   names to keep.
-- Answer: blocks, bytes.
local order, wanted, most, looks, keep = KEYS[7], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), {}
local blocks, bytes, skipped = 0, 0, 0
for _, name in ipairs(split(ARGV[6])) do keep[name] = true end
while bytes < wanted and blocks < most and skipped < looks do
  local names = redis.call('ZRANGE', order, skipped, skipped + 31)
  if #names == 0 then break end
  for _, name in ipairs(names) do
    if bytes >= wanted or blocks >= most then break end
    local lease = redis.call('ZSCORE', LEASES, name)
    if keep[name] or (lease and tonumber(lease) > now) then
      skipped = skipped + 1
    else
      bytes, blocks = bytes + forget(name), blocks + 1
      redis.call('ZREM', order, name)
    end
  end
end
settle()
return {blocks, bytes}
