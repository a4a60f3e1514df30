-- Return the tags of a tree and the ends of their leases: {tag, end, tag, end, …}.
-- ARGV: tag ('' for all).

local found = {}
for _, range in ipairs(ARGV[1] == '' and { { '-', '+' } } or tag_ranges(ARGV[1])) do
  local from = range[1]
  while true do
    local member = redis.call('ZRANGEBYLEX', HELD, from, range[2], 'LIMIT', 0, 1)[1]
    if not member then
      break
    end
    local tag = sub(member, 1, find(member, '\0', 1, true) - 1)
    local current, leaving = lease_ends(tag)
    found[#found + 1], found[#found + 2] = tag, current or leaving or '0'
    from = '[' .. tag .. '\1' -- after its last run
  end
end
return found
