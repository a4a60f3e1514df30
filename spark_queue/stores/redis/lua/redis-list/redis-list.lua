-- keuss' `redis-list`: a list of documents. A program that takes a document removes it.
-- * KEYS[#KEYS] `keuss:q:list:<q>`, list: `{"payload","tries","hdrs"[,"type":"buffer"]}`, the next
--   one last. Our documents also have `_id` and `mature`, as in redis-oq.
--
-- A message of keuss gets an id when one of our clients takes it. It is not known whether the list
-- contains a given id.

layout.use = function(last)
  layout.own = { index = INDEX, hash = HASH, list = KEYS[last] }
end
layout.use(#KEYS)
layout.target = { index = KEYS[8], hash = KEYS[9], list = KEYS[11] }

layout.has_id = function()
  return false
end

layout.exists = function()
  return true
end

for _, step in ipairs({ 'write_message', 'on_reserved', 'on_released', 'on_removed', 'on_empty' }) do
  layout[step] = function() end
end

layout.add_to_list = function(q, _, found, front)
  local values = {}
  for i, document in ipairs(found) do
    values[front and #found + 1 - i or i] = document
  end
  call_many(front and 'RPUSH' or 'LPUSH', q.list, values)
end

-- Return the id of a document and when it is due (ms). Documents of keuss have neither.
local function id_and_due(document)
  local id = string.match(document, '^{"_id":"([^"\\]*)"')
  if not id and sub(document, 1, 11) ~= '{"payload":' then
    local ok, spans = pcall(field_spans, document)
    local text = ok and field_text(document, spans, '_id')
    ok, text = pcall(cjson.decode, '[' .. (text or '') .. ']')
    id = ok and type(text[1]) == 'string' and text[1] or nil
  end
  return id, id and tonumber(string.match(sub(document, -WINDOW), ',"mature":(%d+)[^{}]*}$'))
end

local id_prefix -- how the new ids of this call begin: as an ObjectId does

-- Return the document with this id and due time.
local function add_id(document, id, due)
  if sub(document, 1, 11) == '{"payload":' then
    local tail = sub(document, -17) == ',"type":"buffer"}' and 17 or 1
    return '{"_id":"' .. id .. '",' .. sub(document, 2, -1 - tail) .. ',"mature":' .. digits(due) .. sub(document, -tail)
  end
  local ok, text = pcall(set_field, document, '_id', '"' .. id .. '"')
  return ok and text or document -- its reader reports a text that is not a document
end

layout.read_element = function(document, latest, now, n, seen_ids)
  local id, due = id_and_due(document)
  due = due or min(now, latest)
  if id and not is_odd(id) and not seen_ids[id] and not redis.call('ZSCORE', INDEX, id) then
    return id, document, due
  end
  if not id_prefix then
    local time = redis.call('TIME')
    id_prefix = format('%08x', time[1]) .. sub(redis.sha1hex(concat(time, ' ') .. document), 1, 10)
  end
  id = id_prefix .. format('%06x', n)
  return id, add_id(document, id, due), due
end

layout.element_due = function(document, now)
  local _, due = id_and_due(document)
  return due or now
end

layout.count_others = function()
  return 0
end
