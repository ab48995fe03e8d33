-- Counts sessions and bytes of tenants.
-- Expired sessions leave the account, and tenants without sessions the set of tenants.
-- ARGV: tenants. Answer: sessions and bytes of each.
local answer = {}
for _, tenant in ipairs(ARGV) do
  purge(tenant)
  local sessions = math.max(redis.call('ZCARD', INDEX .. tenant), redis.call('ZCARD', ENDS .. tenant))
  if sessions == 0 then redis.call('SREM', TENANTS, tenant) end
  answer[#answer + 1] = {sessions, bytes_of(tenant)}
end
settle()
return answer
