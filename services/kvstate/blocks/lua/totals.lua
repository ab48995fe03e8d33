-- Counts what is stored of all tenants.
-- ARGV: ms after which the account of a tenant without blocks goes, since tenants' names come from outside.
-- Answer: holders, leases, then tenant, bytes, blocks and byte-seconds, as text, of each account.
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
