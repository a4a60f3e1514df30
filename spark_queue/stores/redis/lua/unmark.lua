-- Remove keuss' mark `reserved` from messages that a tag holds. keuss had reserved them before, and
-- its late commit must not remove messages that are ours now.
-- ARGV: runs of one message…

local kept = check_held((select_messages('', 1)))
allow_when_full()
for _, id in ipairs(kept.ids) do
  local document = redis.call('HGET', HASH, id)
  if is_reserved_by_keuss(document) then
    redis.call('HSET', HASH, id, set_field(document, 'reserved', 'false'))
  end
end
