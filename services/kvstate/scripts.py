"""The Lua scripts of sessions that run inside Redis. No call gets more than `MAX_ITEMS` sessions.

The first write of those that add is one that a full Redis refuses, so that they change nothing then.
"""

MAX_ITEMS = 64

# KEYS: session key, index key, tombstone key, for each record.
# ARGV: ttl in ms, the score up to which index entries are over; then version, record, summary, score,
# session id, creation in ms, last request and lineage of each (ids between blanks; none: two blanks).
# Answer: 1 for each record that is stored now, 0 for a stale one. `records.judge` is the same rule in Python.
PUT = """
local answer = {}
for i = 1, #KEYS / 3 do
  local key, index, gone, at = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], 8 * i - 6
  local version, record = tonumber(ARGV[at + 1]), ARGV[at + 2]
  local stored = tonumber(redis.call('HGET', key, 'v') or 0)
  local deleted = tonumber(redis.call('GET', gone) or -1)
  local last, lineage = redis.call('HGET', key, 'q') or '', ARGV[at + 8]
  local apart = last ~= '' and lineage ~= '  ' and not string.find(lineage, ' ' .. last .. ' ', 1, true)
  if tonumber(ARGV[at + 6]) <= deleted or (version > stored and apart) then
    answer[i] = 0
  elseif version > stored then
    redis.call('HSET', key, 'v', ARGV[at + 1], 'r', record, 's', ARGV[at + 3], 'q', ARGV[at + 7])
    redis.call('PEXPIRE', key, ARGV[1])
    redis.call('ZADD', index, ARGV[at + 4], ARGV[at + 5])
    redis.call('ZREMRANGEBYSCORE', index, '-inf', ARGV[2])
    redis.call('PEXPIRE', index, ARGV[1])
    redis.call('DEL', gone)
    answer[i] = 1
  elseif version == stored and redis.call('HGET', key, 'r') == record then
    answer[i] = 1
  else
    answer[i] = 0
  end
end
return answer
"""

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

# KEYS: session key, index key, tombstone key, pins. ARGV: session id, its member of `pins`, milliseconds that
# the tombstone stands. Answer: 1, or 0 when there was no session. Memory is freed first: Redis may be full.
DELETE = """
if redis.call('DEL', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return 0
end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[2])
local now = redis.call('TIME')
redis.call('SET', KEYS[3], now[1] * 1000 + math.floor(now[2] / 1000), 'PX', ARGV[3])
return 1
"""

# KEYS: session key, pins. ARGV: group, member of `pins`. Answer: 1, or 0 when there is no session.
PIN = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if ARGV[1] == '' then
  redis.call('HDEL', KEYS[1], 'p')
  redis.call('ZREM', KEYS[2], ARGV[2])
else
  redis.call('HSET', KEYS[1], 'p', ARGV[1])
  redis.call('ZADD', KEYS[2], 0, ARGV[2])
end
return 1
"""

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
