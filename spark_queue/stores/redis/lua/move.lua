-- Move the given messages to the target queue, which is KEYS[8] to KEYS[10]. A message of the same
-- id stays there as it is.
-- ARGV: limit, min_tries, failed (added to the tries), history (ms), consumer, headers to add (JSON
-- of {name: JSON text}; '' adds none), runs…
-- Return {messages moved, the message after which to continue ('' if all were checked), 1 if the
-- limit is reached}. That message is a run of one message.

local TO_INDEX, TO_HASH, TO_BUCKETS = KEYS[8], KEYS[9], KEYS[10]
local limit, min_tries, failed = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local history, consumer = tonumber(ARGV[4]), ARGV[5]
local headers = ARGV[6] ~= '' and cjson.decode(ARGV[6])
local named = select_messages('', 7)
local kept = check_held(named)
local found = read_documents(HASH, kept.ids)

local index, hash, ids, moving, new, moved = {}, {}, {}, {}, {}, 0
local history_texts = {}
for i, document in ipairs(found) do
  local parts = document and parse_document(document)
  local unreadable = document and not (parts or headers) -- it moves as it is, but does not become a dead letter here
  if (parts or unreadable) and moved < limit and (parts and parts.tries or 0) >= min_tries then
    local id, due = kept.ids[i], due_of(kept, i)
    if moved + rows_of(id) > limit then
      limit = moved -- the bucket is too large and ends the move, even if later records would fit
      break
    end
    moved = moved + rows_of(id)
    ids[#ids + 1], moving[i] = id, true
    if headers then
      parts.tries = parts.tries + failed
      for name, json in pairs(headers) do
        parts.headers = set_field(parts.headers, name, json)
      end
      parts.headers = set_field(parts.headers, 'x-dl-tries', format('"%d"', parts.tries))
    end
    if history > 0 then
      history_texts[i] = unreadable and document or format_document(parts, due)
    end
    if lists or not redis.call('ZSCORE', TO_INDEX, id) then -- lists.push() checks that itself
      index[#index + 1], index[#index + 2] = score_of(kept, i), id
      hash[#hash + 1] = id
      if unreadable then
        hash[#hash + 1] = document
      else
        parts.tries = 0
        hash[#hash + 1] = format_document(parts, due)
      end
      new[#new + 1] = id
    end
  end
end
allow_when_full()
if lists then
  lists.push_to_target(index, hash)
else
  call_many('HSET', TO_HASH, hash)
  call_many('ZADD', TO_INDEX, index)
  register_buckets(TO_BUCKETS, new)
end
remove_records(ids)
if history > 0 then
  write_history(kept, history_texts, history, consumer, 'dead')
end
local remaining = new_messages(kept)
for i = 1, #kept.ids do
  if not moving[i] then
    copy_message(remaining, kept, i)
  end
end
remove_from_held(named, remaining)
return { moved, #found < #kept.ids and single_run(kept, #found) or '', moved == limit and 1 or 0 }
