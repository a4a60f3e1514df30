-- Gives back what a tag and those below it hold, or the members that are named.
-- ARGV: tag, due (ms; '': when they were due before), failed (0, 1), members… Gives {messages given back, whether to call again}.

drain()
local found, more = selection(ARGV[1], 4)
local kept = examine(found)
local done = give_back(kept, ARGV[2] ~= '' and ARGV[2] or nil, tonumber(ARGV[3]))
release(found, from(kept, done + 1))
if lists then
  lists.returned(take(kept.ids, done), false)
end
return { weigh(take(kept.ids, done)), (more or done < #kept.ids) and 1 or 0 }
