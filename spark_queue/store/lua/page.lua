-- What a tag holds, in order. ARGV: tag, the member after which to go on ('' at first), rows.
-- Gives {members, documents}; none at the end.

local tag, cursor, rows = ARGV[1], ARGV[2], tonumber(ARGV[3])
local members, found, n = {}, {}, 0
while n == 0 do
  local range = own(tag, cursor, rows)
  if #range == 0 then
    break
  end
  cursor = range[#range]
  local kept = examine(range)
  for i, document in ipairs(documents(HASH, kept.ids)) do
    if document then
      if marked(document) then
        -- keuss had it before: a late commit there must not remove what is ours now
        drain()
        document = assign(document, 'reserved', 'false')
        redis.call('HSET', HASH, kept.ids[i], document)
      end
      n = n + 1
      members[n], found[n] = kept[i], document
    end
  end
end
return { members, found }
