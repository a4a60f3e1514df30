-- Moves the named messages to the queue of KEYS[8] to KEYS[10], where one of the same id stays as is.
-- ARGV: limit, min_tries, failed, history (ms), consumer, headers to add (JSON of {name: JSON text}; '' adds none),
-- messages, each as a run of its own…
-- Gives {messages moved, the one after which to go on ('' where all are seen), whether the limit is met}.

local TO_INDEX, TO_HASH, TO_BUCKETS = KEYS[8], KEYS[9], KEYS[10]
local limit, min_tries, failed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local history, consumer = tonumber(ARGV[4]), ARGV[5]
local headers = ARGV[6] ~= '' and cjson.decode(ARGV[6])
local named = selection('', 7)
local kept = examine(named)
local found = documents(HASH, kept.ids)

local index, hash, ids, moving, new, moved = {}, {}, {}, {}, {}, 0
local told = {}
for i, document in ipairs(found) do
  local parts = document and open(document)
  local raw = document and not (parts or headers) -- what cannot be read moves as it is, but does not die here
  if (parts or raw) and moved < limit and (parts and parts.tries or 0) >= min_tries then
    local id, due = kept.ids[i], due_of(kept, i)
    if moved + rows_of(id) > limit then
      limit = moved -- it is too large: the end, though others behind it would fit
      break
    end
    moved = moved + rows_of(id)
    ids[#ids + 1], moving[i] = id, true
    if headers then
      parts.tries = parts.tries + failed
      for name, json in pairs(headers) do
        parts.headers = assign(parts.headers, name, json)
      end
      parts.headers = assign(parts.headers, 'x-dl-tries', format('"%d"', parts.tries))
    end
    if history > 0 then
      told[i] = raw and document or close(parts, due)
    end
    if lists or not redis.call('ZSCORE', TO_INDEX, id) then -- they look for themselves
      index[#index + 1], index[#index + 2] = due, id
      hash[#hash + 1] = id
      if raw then
        hash[#hash + 1] = document
      else
        parts.tries = 0
        hash[#hash + 1] = close(parts, due)
      end
      new[#new + 1] = id
    end
  end
end
drain()
if lists then
  lists.move(index, hash)
else
  spread('HSET', TO_HASH, hash)
  spread('ZADD', TO_INDEX, index)
  enlist(TO_BUCKETS, new)
end
remove(ids)
if history > 0 then
  remember(kept, told, history, consumer, 'dead')
end
local stays = some(kept)
for i = 1, #kept.ids do
  if not moving[i] then
    add(stays, kept, i)
  end
end
release(named, stays)
return { moved, #found < #kept.ids and single(kept, #found) or '', moved == limit and 1 or 0 }
