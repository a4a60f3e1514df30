-- The tags of a tree, '' for all, and the ends of their leases: {tag, end, tag, end, …}. ARGV: tag.

local found = {}
for _, range in ipairs(ARGV[1] == '' and { { '-', '+' } } or ranges(ARGV[1])) do
  local from = range[1]
  while true do
    local member = redis.call('ZRANGEBYLEX', HELD, from, range[2], 'LIMIT', 0, 1)[1]
    if not member then
      break
    end
    local tag = sub(member, 1, find(member, '\0', 1, true) - 1)
    local current, leaving = ends(tag)
    found[#found + 1], found[#found + 2] = tag, current or leaving or '0'
    from = '[' .. tag .. '\1' -- beyond its last member
  end
end
return found
