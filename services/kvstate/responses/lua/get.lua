-- Reads a record. ARGV: tenant, id. Answer: the record and 1 if it is abandoned; nothing if there is none.
local found = redis.call('HMGET', key_of(ARGV[1], ARGV[2]), 'e', 'l', 'r')
if not found[3] then return {} end
return {found[3], is_free(found) and 1 or 0}
