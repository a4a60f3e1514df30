-- keuss' `redis-list`: a list of documents, from which whoever takes one has it.
--   KEYS[#KEYS] keuss:q:list:<q>  list  {"payload","tries","hdrs"[,"type":"buffer"]}, the next one last; one of ours
--                                       has "_id" and "mature" besides, as in redis-oq
-- A message of keuss gets an id when we take it. Nobody can tell whether the list has some id.

layout.own = { index = INDEX, hash = HASH, list = KEYS[#KEYS] }
layout.other = { index = KEYS[8], hash = KEYS[9], list = KEYS[11] }

layout.known = function()
  return false
end

layout.alive = function()
  return true
end

for _, step in ipairs({ 'keep', 'taken', 'returned', 'forget', 'idle' }) do
  layout[step] = function() end
end

layout.put = function(q, _, found, front)
  local values = {}
  for i, document in ipairs(found) do
    values[front and #found + 1 - i or i] = document
  end
  spread(front and 'RPUSH' or 'LPUSH', q.list, values)
end

-- The id that a document has, and when it is due: what keuss has written has neither.
local function told(document)
  local id = string.match(document, '^{"_id":"([^"\\]*)"')
  if not id and sub(document, 1, 11) ~= '{"payload":' then
    local sound, spans = pcall(fields, document)
    local text = sound and value(document, spans, '_id')
    sound, text = pcall(cjson.decode, '[' .. (text or '') .. ']')
    id = sound and type(text[1]) == 'string' and text[1] or nil
  end
  return id, id and tonumber(string.match(document, ',"mature":(%d+)[^{}]*}$'))
end

local made -- how the ids begin that this call makes, as an ObjectId does

-- The document with an id and a moment.
local function named(document, id, due)
  if sub(document, 1, 11) == '{"payload":' then
    local tail = sub(document, -17) == ',"type":"buffer"}' and 17 or 1
    return '{"_id":"' .. id .. '",' .. sub(document, 2, -1 - tail) .. ',"mature":' .. digits(due) .. sub(document, -tail)
  end
  local sound, text = pcall(assign, document, '_id', '"' .. id .. '"')
  return sound and text or document -- what is no document is told when it is read
end

layout.read = function(document, latest, now, n, here)
  local id, due = told(document)
  due = due or min(now, latest)
  if id and id ~= '' and not here[id] and not redis.call('ZSCORE', INDEX, id) then
    return id, document, due
  end
  if not made then
    local time = redis.call('TIME')
    made = format('%08x', time[1]) .. sub(redis.sha1hex(concat(time, ' ') .. document), 1, 10)
  end
  id = made .. format('%06x', n)
  return id, named(document, id, due), due
end

layout.due = function(document, now)
  local _, due = told(document)
  return due or now
end

layout.others = function()
  return 0
end
