-- What a tag holds, in order. ARGV: tag, the message after which to go on, as a run of its own ('' at first), rows.
-- Gives {ids, when they are due: {moment, how many, moment, how many, …}, documents}; none at the end.

local tag, last, rows = ARGV[1], ARGV[2], tonumber(ARGV[3])
local ids, dues, found, n = {}, {}, {}, 0
local all = false
while n == 0 and not all do
  local next, run
  if last ~= '' then -- the run that has it may go on behind it
    run = redis.call('ZREVRANGEBYLEX', HELD, '(' .. last .. '\1', '[' .. sub(last, 1, #tag + 17), 'LIMIT', 0, 1)[1]
  end
  next, all = own(tag, last, rows)
  if run then
    local whole, id = some(), sub(last, #tag + 18)
    read(whole, run)
    local at = 1
    while whole.ids[at] and not before(id, whole.ids[at]) do
      at = at + 1
    end
    if whole.ids[at] then
      whole = from(whole, at)
      for _, other in ipairs(next.runs) do
        read(whole, other)
      end
      next = whole
    end
  end
  if #next.ids > rows then
    next.ids, next.at, all = take(next.ids, rows), take(next.at, rows), false
  end
  if #next.ids > 0 then
    last = single(next, #next.ids)
    local kept, group = examine(next), nil
    for i, document in ipairs(documents(HASH, kept.ids)) do
      if document then
        if marked(document) then
          -- keuss had it before: a late commit there must not remove what is ours now
          drain()
          document = assign(document, 'reserved', 'false')
          redis.call('HSET', HASH, kept.ids[i], document)
        end
        n = n + 1
        ids[n], found[n] = kept.ids[i], document
        if kept.at[i] == group then
          dues[#dues] = dues[#dues] + 1
        else
          group = kept.at[i]
          dues[#dues + 1], dues[#dues + 2] = tonumber(due_of(kept, i)), 1
        end
      end
    end
  end
end
return { ids, dues, found }
