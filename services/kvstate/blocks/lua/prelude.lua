-- Functions that all scripts of KV blocks begin with: facts, accounts, references, holdings.
-- KEYS: meta, order, leases, refs, holders, accounts. ARGV: prefix of data keys, prefix of tenants' orders.
--
-- A session's holding is a hash: names it holds (`n`) and held before (`p`), packed; their bytes (`b`) when it
-- was last counted (`at`), byte-seconds up to then (`s`) and the time of the last commit (`c`), in ms of Redis's
-- clock. `refs` counts a session for both kinds of names.
local META, ORDER, LEASES, REFS, HOLDERS, ACCOUNTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local DATA, TENANT_ORDER = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local changed = {}

local function split(packed)
  local names = {}
  for at = 1, #packed, 16 do names[#names + 1] = string.sub(packed, at, at + 15) end
  return names
end

local function facts(raw)
  local bytes, parts, tenant = string.match(raw, '^(%d+):(%d+):%d+:(.*)$')
  return tonumber(bytes), tonumber(parts), tenant
end

local function note(tenant, bytes, blocks)
  for _, who in ipairs({tenant, ''}) do
    local sum = changed[who] or {0, 0}
    changed[who] = {sum[1] + bytes, sum[2] + blocks}
  end
end

local function account(who)
  local raw = redis.call('HGET', ACCOUNTS, who)
  if not raw then return 0, 0, 0, now end
  local bytes, blocks, seconds, at = string.match(raw, '^(.-):(.-):(.-):(.-)$')
  return tonumber(bytes), tonumber(blocks), seconds + bytes * math.max(0, now - at) / 1000, at
end

local function settle()
  for who, sum in pairs(changed) do
    local bytes, blocks, seconds = account(who)
    redis.call('HSET', ACCOUNTS, who, string.format('%.0f:%.0f:%.3f:%.0f',
      math.max(0, bytes + sum[1]), math.max(0, blocks + sum[2]), seconds, now))
  end
end

local function unregister(name)
  redis.call('ZREM', LEASES, name)
  redis.call('ZREM', ORDER, name)
  local raw = redis.call('HGET', META, name)
  if not raw then return 0 end
  local bytes, _, tenant = facts(raw)
  redis.call('HDEL', META, name)
  redis.call('ZREM', TENANT_ORDER .. tenant, name)
  note(tenant, -bytes, -1)
  return bytes
end

local function forget(name)
  redis.call('UNLINK', DATA .. name)
  return unregister(name)
end

local function unref(name)
  if redis.call('HINCRBY', REFS, name, -1) > 0 then return false end
  redis.call('HDEL', REFS, name)
  return true
end

local function count(names)
  local bytes, blocks = 0, 0
  for first = 1, #names, 4096 do
    local raws = redis.call('HMGET', META, unpack(names, first, math.min(first + 4095, #names)))
    for _, raw in ipairs(raws) do
      if raw then bytes = bytes + string.match(raw, '^%d+'); blocks = blocks + 1 end
    end
  end
  return bytes, blocks
end

local function usage(held)
  local names, bytes, seconds, at = unpack(redis.call('HMGET', held, 'n', 'b', 's', 'at'))
  if not names then return {}, 0 end
  return split(names), seconds + bytes * math.max(0, now - at) / 1000
end

local function recount(held)
  local names, seconds = usage(held)
  redis.call('HSET', held, 'b', count(names), 's', string.format('%.3f', seconds), 'at', now)
end

local function release(held, member)
  redis.call('ZREM', HOLDERS, member)
  local lists, gone = redis.call('HMGET', held, 'n', 'p'), {}
  for _, name in ipairs(split((lists[1] or '') .. (lists[2] or ''))) do
    if unref(name) then
      forget(name)
      gone[#gone + 1] = name
    end
  end
  redis.call('DEL', held)
  return gone
end

local function touch(names, last, lift, tenants)
  local order, by_tenant = {}, {}
  for place = 1, last do
    local tenant = tenants[place]
    if tenant then
      local mine = by_tenant[tenant] or {}
      by_tenant[tenant] = mine
      local score = now + lift(place)
      order[#order + 1], mine[#mine + 1] = score, score
      order[#order + 1], mine[#mine + 1] = names[place], names[place]
    end
  end
  if #order == 0 then return end
  redis.call('ZADD', ORDER, 'GT', unpack(order))
  for tenant, mine in pairs(by_tenant) do redis.call('ZADD', TENANT_ORDER .. tenant, 'GT', unpack(mine)) end
end
