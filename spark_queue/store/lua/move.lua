-- Moves the messages of the named members to the queue of KEYS[7] and KEYS[8], where one of the same id stays as is.
-- ARGV: limit, min_tries, failed, headers to add (JSON of {name: JSON text}; '' adds none), members…
-- Gives {messages moved, the member after which to go on ('' where all are seen)}.

local TO_INDEX, TO_HASH = KEYS[7], KEYS[8]
local limit, min_tries, failed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local headers = ARGV[4] ~= '' and cjson.decode(ARGV[4])
local kept = examine((selection('', 5)))
local found = documents(HASH, kept.ids)

local index, hash, ids, members = {}, {}, {}, {}
for i, document in ipairs(found) do
  local parts = document and open(document)
  if parts and #ids < limit and parts.tries >= min_tries then
    local id, due = kept.ids[i], due_of(kept[i])
    ids[#ids + 1], members[#members + 1] = id, kept[i]
    if not redis.call('ZSCORE', TO_INDEX, id) then
      if headers then
        for name, json in pairs(headers) do
          parts.headers = assign(parts.headers, name, json)
        end
        parts.headers = assign(parts.headers, 'x-dl-tries', format('"%d"', parts.tries + failed))
      end
      parts.tries = 0
      index[#index + 1], index[#index + 2] = due, id
      hash[#hash + 1], hash[#hash + 2] = id, close(parts, due)
    end
  end
end
drain()
spread('HSET', TO_HASH, hash)
spread('ZADD', TO_INDEX, index)
spread('ZREM', INDEX, ids)
spread('HDEL', HASH, ids)
release(members)
return { #ids, #found < #kept and kept[#found] or '' }
