-- Put reserved messages back into the backlog, behind those that wait there, in the order in which
-- they were reserved. Return their ids.
-- ARGV: the number of messages, the oldest first, as rfq does it, even if a consumer works on them.
-- Or 'aged' and ms: only messages that were published at least this long ago, and that no lease of
-- ours holds.

local ids = {}
if ARGV[1] ~= 'aged' then
  for _ = 1, tonumber(ARGV[1]) do
    local id = redis.call('RPOPLPUSH', NEXT, LIST)
    if not id then
      break
    end
    ids[#ids + 1] = id
  end
  return ids
end
local now, seen, all = now_ms(), {}, redis.call('LRANGE', NEXT, 0, -1)
local scores, ended = query_many('ZMSCORE', INDEX, all), {}
for i = #all, 1, -1 do
  local id, score, moment = all[i], tonumber(scores[i] or nil), published_at(all[i])
  if score and score <= now then
    ended[#ended + 1] = id
  elseif not (score or seen[id]) and moment and moment <= now - tonumber(ARGV[2]) then
    ids[#ids + 1], seen[id] = id, true
  end
end
layout.on_released(ids)
call_many('LPUSH', LIST, ids)
while #ended > 0 and not sweep_expired_leases(now) do end -- these go to the front, where they were
for _, id in ipairs(ended) do
  ids[#ids + 1] = id
end
return ids
