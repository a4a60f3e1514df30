-- rfq: a list of waiting ids, a list of reserved ids, and a hash for each message.
-- * KEYS[#KEYS-3] `rfq:<topic>:backlog`, list: ids, the next one last.
-- * KEYS[#KEYS-2] `rfq:<topic>:nextlog`, list: ids that our clients or other programs have
--   reserved, the latest first.
-- * KEYS[#KEYS-1] `spark_queue.rfq:<topic>:more`, hash: id -> tries, due time (ms) and headers
--   (JSON) of a waiting message. Only messages with tries or headers have an entry, and those whose
--   due time is not the time in their id. If another program removes a message, its entry stays
--   until clean_up_details() finds it.
-- * KEYS[#KEYS] `spark_queue.rfq:<topic>:lost`, string: number of ids that were found without a
--   message.
-- * `rfq:<topic>:message:<id>`, hash: the message, a flat map of strings. It is not declared as a
--   key. rfq's own scripts do not declare theirs either, and one node has all of a topic.
--
-- A scheduled message has its hash too, but is in neither list. A reserved message is in the
-- nextlog. To remove the hash is to remove the message: an id without a hash is dropped when it is
-- found.

local function topic(list, next_list, more)
  return { list = list, next = next_list, more = more, message = list and string.gsub(list, 'backlog$', 'message:') }
end

layout.target = topic(KEYS[11], KEYS[12], KEYS[13])
layout.target.index, layout.target.hash = KEYS[8], KEYS[9]

local LIST, NEXT, MORE, LOST, MESSAGE
local FEW = 10 -- fewer ids are removed one by one
local ID_TIME_TOLERANCE = 2000 -- ms: a due time this close to the time in the id has no entry

layout.use = function(last)
  LIST, NEXT, MORE, LOST = unpack(KEYS, last - 3, last)
  layout.own = topic(LIST, NEXT, MORE)
  layout.own.index, layout.own.hash, MESSAGE = INDEX, HASH, layout.own.message
end
layout.use(#KEYS)

layout.has_id = function(q, id)
  return redis.call('EXISTS', q.message .. id) == 1
end

layout.exists = function(id)
  return layout.has_id(layout.own, id)
end

-- Return when a message was published (ms). Its id, a UUID of version 1, contains the time. Return
-- nil for another id.
local function published_at(id)
  local low, mid, high = string.match(id, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)1(%x%x%x)%x+$')
  if not (low and #id == 32) then
    return nil
  end
  local ticks = (tonumber(high, 16) * 65536 + tonumber(mid, 16)) * 4294967296 + tonumber(low, 16)
  return floor(ticks / 10000) - 12219292800000
end

-- Return the names and strings of a document's payload, in their order.
local function flat_payload(document)
  local found = {}
  local at = find(document, '"payload":', 1, true) + 11
  while true do
    local quote = find(document, '["}]', at)
    if sub(document, quote, quote) == '}' then
      return found
    end
    at = string_end(document, quote) + 1
    local text = sub(document, quote + 1, at - 2)
    found[#found + 1] = find(text, '\\', 1, true) and cjson.decode('["' .. text .. '"]')[1] or text
  end
end

-- Store the details that have no place in a message of rfq: tries, headers, and its due time.
-- Return whether there were any.
local function save_details(q, id, document)
  local tries, headers, due = string.match(document, ',"tries":(%-?%d+),"hdrs":(.*),"mature":(%d+)}$')
  local moment = published_at(id)
  if not due then
    return false -- it was not a document before either
  end
  if tonumber(tries) > 0 or headers ~= '{}' or not moment or math.abs(tonumber(due) - moment) > ID_TIME_TOLERANCE then
    redis.call('HSET', q.more, id, tries .. ' ' .. due .. ' ' .. headers)
    return true
  end
  return false
end

-- Check `n` random entries, and remove those whose message another program has removed.
local function clean_up_details(q, n)
  for _, id in ipairs(n > 0 and redis.call('HRANDFIELD', q.more, min(n, CHUNK)) or {}) do
    if not layout.has_id(q, id) then
      redis.call('HDEL', q.more, id)
    end
  end
end

layout.write_message = function(q, id, document)
  call_many('HSET', q.message .. id, flat_payload(document))
end

layout.add_to_list = function(q, ids, found, front, new)
  local named, saved = {}, 0
  for i, id in ipairs(ids) do
    if new then
      layout.write_message(q, id, found[i])
    end
    saved = saved + (save_details(q, id, found[i]) and 1 or 0)
    named[front and #ids + 1 - i or i] = id
  end
  call_many(front and 'RPUSH' or 'LPUSH', q.list, named)
  clean_up_details(q, 2 * saved) -- so that there are never many more entries than messages
end

layout.on_empty = function()
  if redis.call('EXISTS', NEXT) == 0 then
    redis.call('UNLINK', MORE)
  end
end

-- Return tries, headers and due time of a message. If its id contains no time, it is due by
-- `latest`. Otherwise a consumer that takes no message younger than itself would never take it.
local function load_details(id, now, latest)
  local tries, due, headers
  local more = redis.call('HGET', MORE, id)
  if more then
    tries, due, headers = string.match(more, '^(%d+) (%d+) (.*)$')
  end
  return tries or '0', headers or '{}', tonumber(due) or min(published_at(id) or latest, now)
end

layout.element_due = function(id, now)
  local _, _, due = load_details(id, now, now)
  return due
end

-- Return a text as JSON. Bytes that are not UTF-8 become U+FFFD.
local function as_json(text)
  if find(text, '[\128-\255]') then
    local rest = string.gsub(text, '[\240-\244][\128-\191][\128-\191][\128-\191]', '')
    rest = string.gsub(string.gsub(rest, '[\224-\239][\128-\191][\128-\191]', ''), '[\194-\223][\128-\191]', '')
    local too_long = find(text, '\224[\128-\159]') or find(text, '\240[\128-\143]')
    if find(rest, '[\128-\255]') or too_long or find(text, '\237[\160-\191]') or find(text, '\244[\144-\191]') then
      text = string.gsub(text, '[\128-\255]+', '\239\191\189')
    end
  end
  return cjson.encode(text)
end

-- Give a message whose id a run cannot contain another one, and return it.
local function rename(id)
  local name = new_name(id, layout.exists)
  redis.call('RENAME', MESSAGE .. id, MESSAGE .. name)
  local more = redis.call('HGET', MORE, id)
  if more then
    redis.call('HSET', MORE, name, more)
    redis.call('HDEL', MORE, id)
  end
  return name
end

layout.read_element = function(id, latest, now, _, seen_ids)
  if seen_ids[id] then
    return nil
  elseif redis.call('ZSCORE', INDEX, id) then -- a tag of ours holds it, and a harvest has put it back
    if not redis.call('LPOS', NEXT, id) then
      redis.call('LPUSH', NEXT, id)
    end
    return nil
  end
  local fields_of = redis.pcall('HGETALL', MESSAGE .. id)
  if fields_of.err or #fields_of == 0 then
    redis.call('INCR', LOST)
    return nil
  end
  local payload = {}
  for i = 1, #fields_of, 2 do
    payload[#payload + 1] = as_json(fields_of[i]) .. ':' .. as_json(fields_of[i + 1])
  end
  local shown = as_json(id)
  if is_odd(id) then
    id, shown = rename(id), cjson.encode(id) -- bytes that are not UTF-8 stay: the record is damaged
  end
  local tries, headers, due = load_details(id, now, latest)
  return id, '{"_id":' .. shown .. ',"payload":{' .. concat(payload, ',') .. '},"tries":' .. tries
    .. ',"hdrs":' .. headers .. ',"mature":' .. digits(due) .. '}', due
end

layout.on_reserved = function(ids)
  call_many('LPUSH', NEXT, ids)
  call_many('HDEL', MORE, ids)
end

-- Remove the wanted ids from an end of the nextlog, which is `size` ids long. Return their number.
local function take_from_end(wanted, tail, size)
  local first, last = unpack(tail and { -size, -1 } or { 0, size - 1 })
  local rest, found = {}, 0
  local ids = redis.call('LRANGE', NEXT, first, last)
  for n = 1, #ids do
    local id = ids[tail and n or #ids + 1 - n]
    if wanted[id] then
      wanted[id], found = nil, found + 1
    else
      rest[#rest + 1] = id
    end
  end
  if found > 0 then
    redis.call('LTRIM', NEXT, unpack(tail and { 0, -size - 1 } or { size, -1 }))
    call_many(tail and 'RPUSH' or 'LPUSH', NEXT, rest)
  end
  return found
end

-- Remove ids from the nextlog, or from the backlog if a harvest has put them back there. Many ids
-- are at one of its ends, mostly: those of the oldest reservation, or of the latest. LREM would
-- walk through the list for each of them.
layout.on_released = function(ids)
  local wanted, left, size, length = {}, #ids, #ids, redis.call('LLEN', NEXT)
  for _, id in ipairs(ids) do
    wanted[id] = true
  end
  if #ids < FEW then
    for _, id in ipairs(ids) do
      if redis.call('LREM', NEXT, -1, id) > 0 then
        wanted[id] = nil
      end
    end
  else
    repeat
      left = left - take_from_end(wanted, true, size)
      left = left - (left > 0 and size < length and take_from_end(wanted, false, size) or 0)
      local all = size >= length
      size = 4 * size
    until left == 0 or all
  end
  for _, id in ipairs(ids) do
    if wanted[id] then
      redis.call('LREM', LIST, 1, id)
    end
  end
end

layout.on_removed = function(ids)
  layout.on_released(ids)
  for _, id in ipairs(ids) do
    redis.call('UNLINK', MESSAGE .. id)
  end
  call_many('HDEL', MORE, ids)
end

layout.count_others = function(ours, now)
  local ends = {}
  local ended = redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'WITHSCORES')
  for i = 2, #ended, 2 do
    ends[ended[i]] = true
  end
  for score in pairs(ends) do
    ours = ours + redis.call('ZCOUNT', INDEX, score, score)
  end
  return max(0, redis.call('LLEN', NEXT) - ours)
end
