-- Takes keuss' mark off messages that are held: keuss had them before, and a late commit there must not remove what is
-- ours now. ARGV: messages, each as a run of its own…

local kept = examine((selection('', 1)))
drain()
for _, id in ipairs(kept.ids) do
  local document = redis.call('HGET', HASH, id)
  if marked(document) then
    redis.call('HSET', HASH, id, assign(document, 'reserved', 'false'))
  end
end
