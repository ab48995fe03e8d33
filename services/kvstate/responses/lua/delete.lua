-- Deletes a record. ARGV: tenant, id. Answer: 1, or 0 if there was none.
local there = redis.call('EXISTS', key_of(ARGV[1], ARGV[2]))
drop(ARGV[1], ARGV[2])
return there
