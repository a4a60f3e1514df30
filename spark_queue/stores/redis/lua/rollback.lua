-- Gives back what a tag and those below it hold, or the members that are named.
-- ARGV: tag, due (ms; '' as they were before), failed (0, 1), endless (0: not from a very tag that never ends), members…
-- Gives {messages given back, whether to call again}.

if ARGV[4] == '0' then
  local current, leaving = ends(ARGV[1])
  if tonumber(current) == NEVER or tonumber(leaving) == NEVER then
    return { 0, 0 }
  end
end
drain()
local found, more = selection(ARGV[1], 5)
local kept = examine(found)
local due = ARGV[2] ~= '' and ARGV[2] or nil
local done = give_back(kept, due, tonumber(ARGV[3]))
release(found, from(kept, done + 1))
if lists then
  lists.returned(take(kept.ids, done), not due)
end
return { weigh(take(kept.ids, done)), (more or done < #kept.ids) and 1 or 0 }
