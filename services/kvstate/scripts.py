"""The two Lua scripts that run inside Redis. The store never hands a call more than `MAX_ITEMS` sessions."""

MAX_ITEMS = 64

# KEYS: session key, index key, for each record.
# ARGV: ttl in ms, the score up to which index entries are over; then version, record, summary, score and
# session id of each.
# Answer: 1 for each record that is stored now, 0 for a stale one. `records.judge` is the same rule in Python.
PUT = """
local answer = {}
for i = 1, #KEYS / 2 do
  local key, index, at = KEYS[2 * i - 1], KEYS[2 * i], 5 * i - 3
  local version, record = tonumber(ARGV[at + 1]), ARGV[at + 2]
  local stored = tonumber(redis.call('HGET', key, 'v') or 0)
  if version > stored then
    redis.call('HSET', key, 'v', ARGV[at + 1], 'r', record, 's', ARGV[at + 3])
    redis.call('PEXPIRE', key, ARGV[1])
    redis.call('ZADD', index, ARGV[at + 4], ARGV[at + 5])
    redis.call('ZREMRANGEBYSCORE', index, '-inf', ARGV[2])
    redis.call('PEXPIRE', index, ARGV[1])
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
# Answer: summary and milliseconds to live of each. An expired one has an empty summary and leaves the index.
READ = """
local answer = {}
for i = 2, #KEYS do
  local summary = redis.call('HGET', KEYS[i], 's')
  if summary then
    answer[#answer + 1] = summary
    answer[#answer + 1] = redis.call('PTTL', KEYS[i])
  else
    redis.call('ZREM', KEYS[1], ARGV[i - 1])
    answer[#answer + 1] = ''
    answer[#answer + 1] = 0
  end
end
return answer
"""
