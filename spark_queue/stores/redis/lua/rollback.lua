-- Release the messages that a tag and the tags below it hold, or the given ones of them.
-- ARGV: tag, due (ms; '' keeps the due times), failed (0 or 1, added to the tries), endless (0: not
-- if the lease of this tag never ends), runs…
-- Return {messages released, 1 to call again}.

if ARGV[4] == '0' then
  local current, leaving = lease_ends(ARGV[1])
  if tonumber(current) == NEVER or tonumber(leaving) == NEVER then
    return { 0, 0 }
  end
end
allow_when_full()
local found, more = select_messages(ARGV[1], 5)
local kept = check_held(found)
local due = ARGV[2] ~= '' and ARGV[2] or nil
local done = make_free(kept, due, tonumber(ARGV[3]))
remove_from_held(found, messages_from(kept, done + 1))
if lists then
  lists.on_released(first_items(kept.ids, done), not due)
end
return { count_messages(first_items(kept.ids, done)), (more or done < #kept.ids) and 1 or 0 }
