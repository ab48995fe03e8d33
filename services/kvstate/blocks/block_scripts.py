"""The Lua scripts of KV blocks that run inside Redis. Keys that they need are computed: no Redis Cluster.

All take the same first keys and values (`block_prelude.py`), and Redis's clock.

Redis at its `maxmemory` refuses a script's first write if that could grow, so scripts that add change nothing
then; those that free begin with a write that is never refused, after which Redis refuses none.
"""

from services.kvstate.blocks.block_prelude import PRELUDE

# ARGV: names, milliseconds of the lease, parts of a block that counts though it is not registered (0: none
# does). Answer: leading names that are stored, their bytes.
FIND = (
    PRELUDE
    + """
local names, lease, parts, found, bytes = split(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0
for place, raw in ipairs(redis.call('HMGET', META, unpack(names))) do
  if raw then
    if redis.call('EXISTS', DATA .. names[place]) == 0 then break end
    bytes = bytes + string.match(raw, '^%d+')
  elseif parts == 0 or redis.call('HLEN', DATA .. names[place]) ~= parts then
    break
  end
  found = place
end
if lease > 0 and found > 0 then
  local leases, over = {}, string.format('%.0f', now + lease)
  for place = 1, found do leases[2 * place - 1], leases[2 * place] = over, names[place] end
  redis.call('ZADD', LEASES, 'GT', unpack(leases))
end
return {found, bytes}
"""
)

# ARGV: names, parts, tenant, milliseconds of priority, of depth for
# each block, blocks before the first, and milliseconds that the bytes live from now on.
# Answer: sizes, whether each is new, bytes of the tenant, bytes of all.
REGISTER = (
    PRELUDE
    + """
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
"""
)

# KEYS: also the holding of the session. ARGV: its member of holders, milliseconds until the sweep looks after
# it, names.
HOLD = (
    PRELUDE
    + """
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
"""
)

# KEYS: also the order to follow. ARGV: bytes to free, blocks to delete at most, to look at at most, names to
# keep. Answer: blocks, bytes.
EVICT = (
    PRELUDE
    + """
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
"""
)

# ARGV: names. Answer: blocks, bytes.
FORGET = (
    PRELUDE
    + """
local blocks, bytes = 0, 0
for _, name in ipairs(split(ARGV[3])) do
  local size = forget(name)
  if size > 0 then blocks, bytes = blocks + 1, bytes + size end
end
settle()
return {blocks, bytes}
"""
)

# KEYS: also the holding of the session. ARGV: its member of holders. Answer: names that went.
RELEASE = (
    PRELUDE
    + """
local gone = release(KEYS[7], ARGV[3])
settle()
return gone
"""
)

# KEYS: also holdings. Answer: bytes, blocks and byte-seconds, as text, of each.
USAGE = (
    PRELUDE
    + """
local answer = {}
for place = 7, #KEYS do
  local names, seconds = usage(KEYS[place])
  local bytes, blocks = count(names)
  answer[#answer + 1] = {bytes, blocks, string.format('%.3f', seconds)}
end
return answer
"""
)

# ARGV: milliseconds after which the account of a tenant without blocks goes: their names come from outside.
# Answer: holders, leases, then tenant, bytes, blocks and byte-seconds, as text, of each account.
TOTALS = (
    PRELUDE
    + """
redis.call('ZREMRANGEBYSCORE', LEASES, '-inf', now)
local answer = {redis.call('ZCARD', HOLDERS), redis.call('ZCARD', LEASES)}
for _, who in ipairs(redis.call('HKEYS', ACCOUNTS)) do
  local bytes, blocks, seconds, at = account(who)
  if who ~= '' and blocks == 0 and now - at > tonumber(ARGV[3]) then
    redis.call('HDEL', ACCOUNTS, who)
  else
    answer[#answer + 1] = {who, bytes, blocks, string.format('%.3f', seconds)}
  end
end
return answer
"""
)

# ARGV: sessions at most. Answer: members of holders that are due.
DUE_HOLDERS = (
    PRELUDE
    + """
return redis.call('ZRANGEBYSCORE', HOLDERS, '-inf', now, 'LIMIT', 0, ARGV[3])
"""
)

# ARGV: prefix of holdings, milliseconds until the next look, of grace without a record; then a member of
# holders, whether it has a record and whether it was deleted, for each session. Answer: blocks that went.
# `block_eviction.holding_over` is the rule in Python.
CHECK_HOLDERS = (
    PRELUDE
    + """
local blocks = 0
for at = 6, #ARGV, 3 do
  local member, recorded, deleted = ARGV[at], ARGV[at + 1] == '1', ARGV[at + 2] == '1'
  local held = ARGV[3] .. string.gsub(member, ' ', ':', 1)
  local idle = now - (redis.call('HGET', held, 'c') or 0)
  if redis.call('EXISTS', held) == 0 or (not recorded and (deleted or idle >= tonumber(ARGV[5]))) then
    blocks = blocks + #release(held, member)
  else
    redis.call('ZREM', HOLDERS, member)
    redis.call('ZADD', HOLDERS, now + ARGV[4], member)
    recount(held)
  end
end
settle()
return blocks
"""
)

# ARGV: names, milliseconds that bytes without facts live. Answer: blocks whose bytes were gone.
RECONCILE = (
    PRELUDE
    + """
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
"""
)
