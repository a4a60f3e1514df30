-- Puts what was taken back into the backlog, behind what waits there, what was taken first before the rest.
-- ARGV: how many of the oldest, as rfq does it, whoever is at work on them; or 'aged', and ms: only what was published so
-- long ago and is not held by a lease of ours. Gives the ids.

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
local now, seen, all = clock(), {}, redis.call('LRANGE', NEXT, 0, -1)
local scores, ended = gather('ZMSCORE', INDEX, all), {}
for i = #all, 1, -1 do
  local id, score, moment = all[i], tonumber(scores[i] or nil), published(all[i])
  if score and score <= now then
    ended[#ended + 1] = id
  elseif not (score or seen[id]) and moment and moment <= now - tonumber(ARGV[2]) then
    ids[#ids + 1], seen[id] = id, true
  end
end
layout.returned(ids)
spread('LPUSH', LIST, ids)
while #ended > 0 and not sweep(now) do end -- they come to the front: they have their place
for _, id in ipairs(ended) do
  ids[#ids + 1] = id
end
return ids
