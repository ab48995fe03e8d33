-- Ends the holding of a session.
-- KEYS: also the holding. ARGV: its member of holders. Answer: names of the blocks that were deleted.
local gone = release(KEYS[7], ARGV[3])
settle()
return gone
