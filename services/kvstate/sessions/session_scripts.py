"""The Lua scripts of sessions that run inside Redis. No call gets more than `MAX_ITEMS` sessions.

The first write of those that add is one that a full Redis refuses, so that they change nothing then.
"""

from services.kvstate.sessions.session_prelude import PRELUDE

MAX_ITEMS = 64

# KEYS: none, names follow from tenants and session ids. ARGV: ttl in ms, sessions and bytes that a tenant may
# have, ms for which a turn may come late; then tenant, session id, version, record, summary, score, creation
# and end of the turn in ms, whether it is spare, last request and lineage (ids between blanks; none: two
# blanks) of each.
# Answer: how many spare sessions went, then a `Verdict` for each record: 1 it is stored now, 0 stale,
# 2 deleted, 3 over quota. `session_merge.judge` and `quota.Usage` are the same rules in Python.
PUT = (
    PRELUDE
    + """
local ttl, max_sessions, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local late, answer = now - ARGV[4], {0}
local floors, kept = {}, {}  -- by tenant: what is the same for all its records in this call

local function floor(tenant)
  floors[tenant] = floors[tenant] or tonumber(redis.call('GET', FLOOR .. tenant) or -1)
  return floors[tenant]
end

local function keep(tenant)
  if kept[tenant] then return end
  kept[tenant] = true
  redis.call('SADD', TENANTS, tenant)
  -- scores lie at most one ttl before their commit (`make_entry`), so what is two old has expired
  redis.call('ZREMRANGEBYSCORE', INDEX .. tenant, '-inf', now - 2 * ttl)
  redis.call('PEXPIRE', INDEX .. tenant, ttl)
end

local function store(tenant, id, at, gone)
  local size = #ARGV[at + 4] + #ARGV[at + 5] + OVERHEAD + ID_COPIES * #id + #tenant
  local fits, dropped, before = make_room(tenant, id, size, max_sessions, max_bytes)
  answer[1] = answer[1] + dropped
  if not fits then return 3 end
  local key = SESSION .. tenant .. ':' .. id
  redis.call('HSET', key, 'v', ARGV[at + 3], 'r', ARGV[at + 4], 's', ARGV[at + 5], 'q', ARGV[at + 10])
  redis.call('PEXPIRE', key, ttl)
  redis.call('ZADD', INDEX .. tenant, ARGV[at + 6], id)
  local added = redis.call('ZADD', ENDS .. tenant, now + ttl, id)
  if found_sessions[tenant] then found_sessions[tenant] = found_sessions[tenant] + added end
  if ARGV[at + 9] == '1' then
    redis.call('ZADD', SPARE .. tenant, now, id)
  else
    redis.call('ZREM', SPARE .. tenant, id)
  end
  if gone >= 0 then  -- the tombstone goes, its time stays with the session that has the id now
    redis.call('HSET', key, 'd', gone)
    redis.call('DEL', GONE .. tenant .. ':' .. short(id))
    redis.call('ZREM', DELETED .. tenant, short(id))
  end
  resize(tenant, id, size, before)
  keep(tenant)
  return 1
end

for at = 4, #ARGV - 1, 11 do
  local tenant, id, version = ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local key = SESSION .. tenant .. ':' .. id
  local found = redis.call('HMGET', key, 'v', 'd', 'q')
  local stored, last, lineage = tonumber(found[1] or 0), found[3] or '', ARGV[at + 11]
  local gone, verdict = tonumber(redis.call('GET', GONE .. tenant .. ':' .. short(id)) or -1), 0
  local deleted = math.max(gone, tonumber(found[2] or -1))
  if stored == 0 then deleted = math.max(deleted, floor(tenant)) end
  if tonumber(ARGV[at + 7]) <= deleted then
    verdict = 2
  elseif stored == 0 then
    local ended = tonumber(ARGV[at + 8])
    verdict = version > 1 and ended > 0 and ended <= late and 2 or store(tenant, id, at, gone)
  elseif version > stored then
    local apart = last ~= '' and lineage ~= '  ' and not string.find(lineage, ' ' .. last .. ' ', 1, true)
    if not apart then verdict = store(tenant, id, at, gone) end
  elseif version == stored and redis.call('HGET', key, 'r') == ARGV[at + 4] then
    verdict = 1
  end
  answer[#answer + 1] = verdict
end
settle()
return answer
"""
)

# KEYS: index key, then session keys. ARGV: their session ids.
# Answer: summary, milliseconds to live and pin of each. An expired one has no summary and leaves the index.
READ = """
local answer = {}
for i = 2, #KEYS do
  local found = redis.call('HMGET', KEYS[i], 's', 'p')
  if found[1] then
    answer[#answer + 1] = {found[1], redis.call('PTTL', KEYS[i]), found[2] or ''}
  else
    redis.call('ZREM', KEYS[1], ARGV[i - 1])
    answer[#answer + 1] = {'', 0, ''}
  end
end
return answer
"""

# ARGV: tenant, session id, milliseconds that the tombstone stands, tombstones that a tenant may have.
# Answer: 1, or 0 when there was no session. Memory is freed first: Redis may be full. Where there are too
# many tombstones, the oldest ones become a time up to which all sessions that are not there were deleted.
DELETE = (
    PRELUDE
    + """
local tenant, id, stands = ARGV[1], ARGV[2], tonumber(ARGV[3])
local there = redis.call('EXISTS', SESSION .. tenant .. ':' .. id)
drop(tenant, id)
settle()
if there == 0 then return 0 end
redis.call('SET', GONE .. tenant .. ':' .. short(id), now, 'PX', stands)
redis.call('ZREMRANGEBYSCORE', DELETED .. tenant, '-inf', now - stands)
redis.call('ZADD', DELETED .. tenant, now, short(id))
redis.call('PEXPIRE', DELETED .. tenant, stands)
local over = redis.call('ZCARD', DELETED .. tenant) - ARGV[4]
if over > 0 then
  local oldest = redis.call('ZRANGE', DELETED .. tenant, 0, math.min(over, MAX_PURGED) - 1, 'WITHSCORES')
  for at = 1, #oldest, 2 do
    redis.call('DEL', GONE .. tenant .. ':' .. oldest[at])
    redis.call('ZREM', DELETED .. tenant, oldest[at])
  end
  redis.call('SET', FLOOR .. tenant, oldest[#oldest], 'PX', stands)
end
return 1
"""
)

# ARGV: tenant, session id, group, pins that the tenant may have, pins of all tenants.
# Answer: 1; 0 when there is no session, 2 when the tenant has too many pins, 3 when all together have.
PIN = (
    PRELUDE
    + """
local tenant, id, group = ARGV[1], ARGV[2], ARGV[3]
local key, member = SESSION .. tenant .. ':' .. id, ARGV[1] .. ' ' .. ARGV[2]
if redis.call('EXISTS', key) == 0 then return 0 end
if group == '' then
  redis.call('HDEL', key, 'p')
  redis.call('ZREM', PINS, member)
  return 1
end
local function pins() return redis.call('ZLEXCOUNT', PINS, '[' .. tenant .. ' ', '(' .. tenant .. '!') end
if not redis.call('ZSCORE', PINS, member) then
  if pins() >= tonumber(ARGV[4]) then
    purge(tenant)
    settle()
  end
  if pins() >= tonumber(ARGV[4]) then return 2 end
  if redis.call('ZCARD', PINS) >= tonumber(ARGV[5]) then return 3 end
end
redis.call('HSET', key, 'p', group)
redis.call('ZADD', PINS, 0, member)
redis.call('ZREM', SPARE .. tenant, id)
return 1
"""
)

# KEYS: pins. ARGV: where to begin (as in ZRANGEBYLEX), how many, prefix of session keys.
# Answer: member and group of each; the group of a session that expired is empty, and it leaves the set.
PINNED = """
local answer = {}
for i, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, ARGV[2])) do
  local group = redis.call('HGET', ARGV[3] .. string.gsub(member, ' ', ':', 1), 'p')
  if not group then redis.call('ZREM', KEYS[1], member) end
  answer[i] = {member, group or ''}
end
return answer
"""

# ARGV: tenants. Answer: sessions and bytes of each. Expired sessions leave the account, tenants without
# sessions the set of tenants.
TALLY = (
    PRELUDE
    + """
local answer = {}
for _, tenant in ipairs(ARGV) do
  purge(tenant)
  local sessions = math.max(redis.call('ZCARD', INDEX .. tenant), redis.call('ZCARD', ENDS .. tenant))
  if sessions == 0 then redis.call('SREM', TENANTS, tenant) end
  answer[#answer + 1] = {sessions, bytes_of(tenant)}
end
settle()
return answer
"""
)
