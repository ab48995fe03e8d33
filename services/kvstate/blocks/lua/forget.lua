-- Deletes blocks, whether held or not.
-- ARGV: names. Answer: blocks, bytes.
local blocks, bytes = 0, 0
for _, name in ipairs(split(ARGV[3])) do
  local size = forget(name)
  if size > 0 then blocks, bytes = blocks + 1, bytes + size end
end
settle()
return {blocks, bytes}
