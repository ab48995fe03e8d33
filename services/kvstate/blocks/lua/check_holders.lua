-- Releases holders whose session is over: it expired or was deleted. During its first turn a session has no
--   record yet, and a time of grace.
-- ARGV: prefix of holdings, ms until the next check, ms of grace without a record; then for each session: its
--   member of holders, whether it has a record, whether it was deleted.
-- Answer: blocks that were deleted.
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
