-- Stores session records by the merge rule and within quotas.
-- `session_merge.judge` and `session_quota.TenantUsage` are the same rules in Python.
-- KEYS: none; names follow from tenants and session ids.
-- ARGV: time to live in ms, sessions and bytes that a tenant may have, ms for which a turn may come late, time to
--   live of spare sessions in ms; then for each record: tenant, session id, version, record, summary, score, creation and end of the turn in ms,
--   whether it is spare, last request, lineage (ids between blanks; two blanks for none).
-- Answer: how many spare sessions were dropped, then for each record 1 (stored), 0 (stale), 2 (deleted) or
--   3 (over quota).
local ttl, max_sessions, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local late, spare_ttl, answer = now - ARGV[4], math.min(ttl, tonumber(ARGV[5])), {0}
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
  local spare = ARGV[at + 9] == '1' and redis.call('HEXISTS', key, 'p') == 0
  local life = spare and spare_ttl or ttl
  redis.call('PEXPIRE', key, life)
  redis.call('ZADD', INDEX .. tenant, ARGV[at + 6], id)
  local added = redis.call('ZADD', ENDS .. tenant, now + life, id)
  if found_sessions[tenant] then found_sessions[tenant] = found_sessions[tenant] + added end
  if spare then
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

for at = 5, #ARGV - 1, 11 do
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
