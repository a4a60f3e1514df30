-- rfq: a list of ids of what waits, one of what was taken, and each message a hash of its own.
--   KEYS[#KEYS-3] rfq:<topic>:backlog            list  ids, the next one last
--   KEYS[#KEYS-2] rfq:<topic>:nextlog            list  ids of what was taken, by ours or by others, the latest first
--   KEYS[#KEYS-1] spark_queue.rfq:<topic>:more   hash  id -> tries, ms at which it was due, headers (JSON), of what waits
--                                                      and has some, or was not due when its id says that it was
--                                                      published; of what others have taken, until somebody looks
--   KEYS[#KEYS]   spark_queue.rfq:<topic>:lost   string  how many ids were met whose message was gone
--   rfq:<topic>:message:<id>                     hash  the message, a flat map of strings. Not declared: rfq's own scripts
--                                                      declare none of theirs, and one node has them all
-- A scheduled message has its hash, too, but is in neither list. A reserved one is in the nextlog. Whoever removes the
-- hash has removed the message: an id without one is dropped wherever it is met.

local function topic(list, next_list, more)
  return { list = list, next = next_list, more = more, message = list and string.gsub(list, 'backlog$', 'message:') }
end

layout.own = topic(unpack(KEYS, #KEYS - 3))
layout.own.index, layout.own.hash = INDEX, HASH
layout.other = topic(KEYS[11], KEYS[12], KEYS[13])
layout.other.index, layout.other.hash = KEYS[8], KEYS[9]

local LIST, NEXT, MORE, LOST = unpack(KEYS, #KEYS - 3)
local MESSAGE = layout.own.message
local NEAR = 2000 -- ms between a message's id and its push

layout.known = function(q, id)
  return redis.call('EXISTS', q.message .. id) == 1
end

layout.alive = function(id)
  return layout.known(layout.own, id)
end

-- When a message was published (ms), which its id tells, a UUID of version 1; nil for another.
local function published(id)
  local low, mid, high = string.match(id, '^(%x%x%x%x%x%x%x%x)(%x%x%x%x)1(%x%x%x)%x+$')
  if not (low and #id == 32) then
    return nil
  end
  local ticks = (tonumber(high, 16) * 65536 + tonumber(mid, 16)) * 4294967296 + tonumber(low, 16)
  return floor(ticks / 10000) - 12219292800000
end

-- The names and strings of the payload of a document, in their order.
local function flat(document)
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

-- Jots down what the message itself cannot tell: tries, headers, and when it was due; gives whether there was any.
local function jot(q, id, document)
  local tries, headers, due = string.match(document, ',"tries":(%-?%d+),"hdrs":(.*),"mature":(%d+)}$')
  local moment = published(id)
  if not due then
    return false -- it was no document before either
  end
  if tonumber(tries) > 0 or headers ~= '{}' or not moment or math.abs(tonumber(due) - moment) > NEAR then
    redis.call('HSET', q.more, id, tries .. ' ' .. due .. ' ' .. headers)
    return true
  end
  return false
end

-- Forgets what is remembered of messages that others have removed: of so many entries, by chance.
local function tidy(q, n)
  for _, id in ipairs(n > 0 and redis.call('HRANDFIELD', q.more, min(n, CHUNK)) or {}) do
    if not layout.known(q, id) then
      redis.call('HDEL', q.more, id)
    end
  end
end

layout.keep = function(q, id, document)
  spread('HSET', q.message .. id, flat(document))
end

layout.put = function(q, ids, found, front, new)
  local named, remembered = {}, 0
  for i, id in ipairs(ids) do
    if new then
      layout.keep(q, id, found[i])
    end
    remembered = remembered + (jot(q, id, found[i]) and 1 or 0)
    named[front and #ids + 1 - i or i] = id
  end
  spread(front and 'RPUSH' or 'LPUSH', q.list, named)
  tidy(q, 2 * remembered) -- so that there are never many more than messages
end

layout.idle = function()
  if redis.call('EXISTS', NEXT) == 0 then
    redis.call('UNLINK', MORE)
  end
end

-- What is remembered of a message: tries, headers and when it is due. One whose id has no time is due by `latest`, or a
-- reader that takes nothing younger than itself would never take it.
local function told(id, now, latest)
  local tries, due, headers
  local more = redis.call('HGET', MORE, id)
  if more then
    tries, due, headers = string.match(more, '^(%d+) (%d+) (.*)$')
  end
  return tries or '0', headers or '{}', tonumber(due) or min(published(id) or latest, now)
end

layout.due = function(id, now)
  local _, _, due = told(id, now, now)
  return due
end

-- A text as JSON; bytes that are no UTF-8 become U+FFFD.
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

layout.read = function(id, latest, now, _, here)
  if here[id] then
    return nil
  elseif redis.call('ZSCORE', INDEX, id) then -- one of ours has it, and somebody's harvest took it back
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
  local tries, headers, due = told(id, now, latest)
  return id, '{"_id":' .. as_json(id) .. ',"payload":{' .. concat(payload, ',') .. '},"tries":' .. tries
    .. ',"hdrs":' .. headers .. ',"mature":' .. digits(due) .. '}', due
end

layout.taken = function(ids)
  spread('LPUSH', NEXT, ids)
  spread('HDEL', MORE, ids)
end

-- Takes ids out of the nextlog, or out of the backlog where somebody's harvest has put them back. Many at once are looked
-- for in one go: each alone is a walk through the list.
layout.returned = function(ids)
  local missing = {}
  if 4 * #ids < redis.call('LLEN', NEXT) then
    for _, id in ipairs(ids) do
      if redis.call('LREM', NEXT, -1, id) == 0 then
        missing[#missing + 1] = id
      end
    end
  else
    local gone, left = {}, {}
    for _, id in ipairs(ids) do
      gone[id] = true
    end
    for _, id in ipairs(redis.call('LRANGE', NEXT, 0, -1)) do
      if gone[id] then
        gone[id] = nil
      else
        left[#left + 1] = id
      end
    end
    redis.call('DEL', NEXT)
    spread('RPUSH', NEXT, left)
    for _, id in ipairs(ids) do
      missing[#missing + 1] = gone[id] and id
    end
  end
  for _, id in ipairs(missing) do
    redis.call('LREM', LIST, 1, id)
  end
end

layout.forget = function(ids)
  layout.returned(ids)
  for _, id in ipairs(ids) do
    redis.call('UNLINK', MESSAGE .. id)
  end
  spread('HDEL', MORE, ids)
end

layout.others = function(ours, now)
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
