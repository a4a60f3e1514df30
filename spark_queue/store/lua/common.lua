-- How a queue lies in Redis, and the steps that the scripts share: every script is this file followed by its own.
--
-- As keuss (`redis-oq`) keeps them, so that its programs share the queue:
--   KEYS[1] keuss:q:ordered_queue:index:<q>  zset  id -> ms from which it may be taken: it is due, or its lease ends
--   KEYS[2] keuss:q:ordered_queue:hash:<q>   hash  id -> {"_id","payload","tries","hdrs","mature"[,"type":"buffer"]
--                                                  [,"reserved":bool]}
-- Ours:
--   KEYS[3] spark_queue:<q>:held             zset  tag NUL due NUL id -> 0. `due` (ms) has 15 digits, so the order of
--                                                  the text is that of (tag, due, id)
--   KEYS[4] spark_queue:<q>:leases           zset  tag -> ms at which its lease ends; while a renewal is under way
--                                                  also tag NUL -> the end that is being left
--   KEYS[5] spark_queue:<q>:history          hash  id -> {"processed":ms,"mature":ms,"message":the document}
--   KEYS[6] spark_queue:<q>:processed        zset  id -> ms at which the history forgets it
--   KEYS[7] spark_queue:<q>:buckets          zset  id -> how many messages it holds, of each bucket (keuss may have
--                                                  removed it)
-- move.lua has the index, the hash and the buckets of the other queue as KEYS[8] to KEYS[10]; the scripts about what is
-- staged have a chunk of it as KEYS[8]:
--   spark_queue:<q>:staged:<stage>/<part>    list  id, due, document, id, … as push.lua takes them; a single '' is what
--                                                  is left of a chunk that is over, for LATE ms. <part> ends with the
--                                                  number of its messages
-- Beside the queues, where the script of a queue cannot reach (on a cluster they lie elsewhere):
--   spark_queue.sink:<sink>                  set   stage/part NUL queue, of each chunk that may be there
--   spark_queue.note:<key>                   hash  value -> JSON, version -> how often it was written
--
-- The fence: a tag holds a message while `held` has the member and the index has the message at an end of the tag's
-- lease. keuss, which knows nothing of `held`, moves a message in the index whenever it takes or gives it back.
--
-- Ahead of this file stand: CHUNK, the most messages that a call changes, so that the server is not blocked for long;
-- BYTES, at which a call stops reading documents; NEVER, the end of a lease that does not end.

-- A record is a message or a bucket of many, which its id tells. Scripts treat them alike, and count messages.
--
local INDEX, HASH, HELD, LEASES, HISTORY, PROCESSED, BUCKETS = unpack(KEYS, 1, 7)
local WIDTH = 4000 -- arguments of one command: unpack() takes less than 8000
local LATE = 600000 -- ms after which a call that its client has given up comes no more
local MARK = 127 -- as no id of a message begins, and that of each bucket
local find, sub, format, floor, min, byte =
  string.find, string.sub, string.format, math.floor, math.min, string.byte

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

local function digits(number)
  return format('%.0f', number)
end

-- A full Redis refuses the first write of a script if that may need memory, and no later one. This one needs none, so
-- that a full Redis can still be drained.
local function drain()
  redis.call('ZREM', LEASES, '')
end

-- Calls a command with more arguments than one call takes.
local function spread(command, key, arguments)
  for i = 1, #arguments, WIDTH do
    redis.call(command, key, unpack(arguments, i, min(i + WIDTH - 1, #arguments)))
  end
end

-- The same for a command with one answer to each argument.
local function gather(command, key, arguments)
  if #arguments <= WIDTH then
    return #arguments > 0 and redis.call(command, key, unpack(arguments)) or {}
  end
  local answers = {}
  for at = 0, #arguments - 1, WIDTH do
    for i, answer in ipairs(redis.call(command, key, unpack(arguments, at + 1, min(at + WIDTH, #arguments)))) do
      answers[at + i] = answer
    end
  end
  return answers
end

-- The documents of ids (false for one that is missing), at least one, but no more than about BYTES of them.
local function documents(key, ids)
  local found, bytes, at, step = {}, 0, 0, 1
  while at < #ids and bytes < BYTES do
    for i, document in ipairs(redis.call('HMGET', key, unpack(ids, at + 1, min(at + step, #ids)))) do
      found[at + i] = document
      bytes = bytes + #(document or '')
    end
    at = at + step
    step = math.max(1, min(100, floor((BYTES - bytes) * at / (bytes + 1)))) -- as many as will fit if they are alike
  end
  return found
end

local function take(list, most)
  return #list <= most and list or { unpack(list, 1, most) }
end

-- How many messages the record with this id holds.
local function rows_of(id)
  return byte(id) == MARK and tonumber(string.match(id, '(%d+)\127%x+$')) or 1
end

-- How many messages the first `most` of these records hold; of all, where that is nil.
local function weigh(ids, most)
  local rows = 0
  for i = 1, most or #ids do
    rows = rows + rows_of(ids[i])
  end
  return rows
end

-- Those of these records that are buckets.
local function buckets_of(ids)
  local found = {}
  for _, id in ipairs(ids) do
    if byte(id) == MARK then
      found[#found + 1] = id
    end
  end
  return found
end

-- Counts buckets among those of a queue.
local function enlist(key, ids)
  for _, id in ipairs(buckets_of(ids)) do
    redis.call('ZADD', key, rows_of(id), id)
  end
end

-- Removes records from the queue.
local function remove(ids)
  spread('ZREM', INDEX, ids)
  spread('HDEL', HASH, ids)
  spread('ZREM', BUCKETS, buckets_of(ids))
end

-- How many messages more than records there are, of those with this score at most.
local function more_by(last)
  local rows = 0
  local found = redis.call('ZRANGE', BUCKETS, 0, -1)
  for i, score in ipairs(gather('ZMSCORE', INDEX, found)) do
    if score and tonumber(score) <= last then
      rows = rows + rows_of(found[i]) - 1
    end
  end
  return rows
end

-- When a lease (ms; '' never ends) that begins now will end.
local function end_of(lease)
  return digits(lease == '' and NEVER or min(clock() + tonumber(lease), NEVER))
end

-- --- messages in ---------------------------------------------------------------------------------------------------

-- Makes rows (id, due, document; id, due, document; …) records, but for ids that the queue holds already; gives the
-- number of messages.
local function push(rows)
  local ids, index, hash, seen, new = {}, {}, {}, {}, {}
  for i = 1, #rows, 3 do
    ids[#ids + 1] = rows[i]
  end
  for n, score in ipairs(gather('ZMSCORE', INDEX, ids)) do
    local id = ids[n]
    if not score and not seen[id] then
      seen[id] = true
      new[#new + 1] = id
      local i = #index
      index[i + 1], index[i + 2] = rows[3 * n - 1], id
      hash[i + 1], hash[i + 2] = id, rows[3 * n]
    end
  end
  spread('HSET', HASH, hash)
  spread('ZADD', INDEX, index)
  enlist(BUCKETS, new)
  return weigh(new)
end

-- Ends a chunk that is published or removed. What is left of it keeps stage.lua from writing it again: a call may come
-- late, its client having given up, or from a writer who was thought dead.
local function finish(chunk)
  redis.call('UNLINK', chunk) -- first: it needs no memory
  redis.call('RPUSH', chunk, '')
  redis.call('PEXPIRE', chunk, LATE)
end

-- --- documents: changed as text, so that the payload stays as it was pushed ----------------------------------------

local function string_end(text, quote)
  local at = quote + 1
  while true do
    local found = find(text, '["\\]', at)
    if sub(text, found, found) == '"' then
      return found
    end
    at = found + 2
  end
end

local function value_end(text, at)
  local first = sub(text, at, at)
  if first == '"' then
    return string_end(text, at)
  elseif first ~= '{' and first ~= '[' then
    return find(text, '[%s,}%]]', at) - 1
  end
  local depth = 0
  repeat
    at = find(text, '["{}%[%]]', at)
    local mark = sub(text, at, at)
    if mark == '"' then
      at = string_end(text, at)
    else
      depth = depth + ((mark == '{' or mark == '[') and 1 or -1)
    end
    at = at + 1
  until depth == 0
  return at - 1
end

-- Where the values of a JSON object's own fields are: name -> {first, last}. Fails on what is not JSON.
local function fields(text)
  local spans = {}
  local _, at = find(text, '^%s*{')
  while true do
    local _, quote = find(text, '^[%s,]*"', at + 1)
    if not quote then
      return spans
    end
    local close = string_end(text, quote)
    local _, colon = find(text, '^%s*:%s*', close + 1)
    at = value_end(text, colon + 1)
    spans[sub(text, quote + 1, close - 1)] = { colon + 1, at }
  end
end

local function value(text, spans, name)
  return spans[name] and sub(text, unpack(spans[name]))
end

local function assign(text, name, json)
  local spans = fields(text)
  if spans[name] then
    return sub(text, 1, spans[name][1] - 1) .. json .. sub(text, spans[name][2] + 1)
  end
  return string.match(text, '^(.*)}') .. (next(spans) and ',"' or '"') .. name .. '":' .. json .. '}'
end

-- Takes a document apart: `tries`, `headers` (JSON text) and the rest. Nil for what is not a document.
local function open(document)
  local head, tries, headers, tail =
    string.match(document, '^({"_id":"[^"]*","payload":.*),"tries":(%d+),"hdrs":({.*}),"mature":%d+([^{}]*})$')
  if
    head
    and (tail == '}' or tail == ',"type":"buffer"}')
    -- no JSON value ends so: these would be fields that stand between payload and tries
    and not (find(head, ':true$', -5) or find(head, ':false$', -6) or find(head, ',"type":"buffer"$', -16))
    and (headers == '{}' or pcall(cjson.decode, headers))
  then
    return { head = head, tries = tonumber(tries), headers = headers, tail = tail }
  end
  -- keuss has rewritten it, in an order of fields that is nobody's
  local sound, spans = pcall(fields, document)
  if sound then
    return {
      document = document,
      tries = tonumber(value(document, spans, 'tries')) or 0,
      headers = value(document, spans, 'hdrs') or '{}',
      reserved = value(document, spans, 'reserved') == 'true',
    }
  end
end

-- The document again, due at `due`, and no longer marked as reserved: keuss commits what is marked, whoever holds it.
local function close(parts, due)
  local tries = format('%d', parts.tries)
  if parts.head then
    return parts.head .. ',"tries":' .. tries .. ',"hdrs":' .. parts.headers .. ',"mature":' .. due .. parts.tail
  end
  local document = assign(assign(parts.document, 'tries', tries), 'hdrs', parts.headers)
  document = assign(document, 'mature', due)
  return parts.reserved and assign(document, 'reserved', 'false') or document
end

-- Whether keuss has marked a document as reserved.
local function marked(document)
  if document and find(document, 'reserved":true', 1, true) then
    local sound, spans = pcall(fields, document)
    return sound and value(document, spans, 'reserved') == 'true'
  end
  return false
end

-- --- reservations --------------------------------------------------------------------------------------------------

-- The ranges of `held` that belong to a tag and to those below it: '0' comes right after '/'.
local function ranges(tag)
  return { { '[' .. tag .. '\0', '(' .. tag .. '\1' }, { '[' .. tag .. '/', '(' .. tag .. '0' } }
end

-- Up to `most` members of this very tag that come after `cursor` ('': from the first).
local function own(tag, cursor, most)
  local from = cursor == '' and '[' .. tag .. '\0' or '(' .. cursor
  return redis.call('ZRANGEBYLEX', HELD, from, '(' .. tag .. '\1', 'LIMIT', 0, most)
end

-- The ends of a tag's lease: the one, and the one that a renewal is leaving.
local function ends(tag)
  return redis.call('ZSCORE', LEASES, tag), redis.call('ZSCORE', LEASES, tag .. '\0')
end

-- When the message of a member is due.
local function due_of(member)
  local at = find(member, '\0', 1, true)
  return digits(tonumber(sub(member, at + 1, at + 15)))
end

-- Sorts members into `kept`, which still hold their message, and `lost`. `kept.ids` are the ids of the messages, and
-- `kept.ends` the ends of their leases.
-- A member without a tag is no member at all: it stands for a message that was seen free, at `due` in the index. It
-- is kept while that is still so and keuss does not hold it.
local function examine(members)
  local ids, starts = {}, {}
  local start = '\0' -- tag NUL: most members have that of the one before
  for i, member in ipairs(members) do
    if find(member, start, 1, true) ~= 1 then
      start = sub(member, 1, find(member, '\0', 1, true))
    end
    ids[i], starts[i] = sub(member, #start + 17), start
  end
  local now, known, first, second = clock(), nil, nil, nil
  local kept, lost, n = { ids = {}, ends = {} }, {}, 0
  for i, score in ipairs(gather('ZMSCORE', INDEX, ids)) do
    local holds
    if starts[i] == '\0' then
      local due = due_of(members[i])
      holds = score and digits(floor(tonumber(score))) == due
      holds = holds and not (tonumber(due) > now and marked(redis.call('HGET', HASH, ids[i])))
    else
      if starts[i] ~= known then
        known = starts[i]
        first, second = ends(sub(known, 1, -2))
      end
      holds = score and (score == first or score == second)
    end
    if holds then
      n = n + 1
      kept[n], kept.ids[n], kept.ends[n] = members[i], ids[i], score
    else
      lost[#lost + 1] = members[i]
    end
  end
  return kept, lost
end

-- What a call is about: the members that the caller names from ARGV[first] on, else the next ones of the tag's tree.
local function selection(tag, first)
  local members, n = {}, 0
  if ARGV[first] then
    local named = { unpack(ARGV, first) }
    local present = gather('ZMSCORE', HELD, named)
    for i, member in ipairs(named) do
      if present[i] or sub(member, 1, 1) == '\0' then
        n = n + 1
        members[n] = member
      end
    end
    return members, false
  end
  for _, range in ipairs(ranges(tag)) do
    for _, member in ipairs(redis.call('ZRANGEBYLEX', HELD, range[1], range[2], 'LIMIT', 0, CHUNK - n)) do
      n = n + 1
      members[n] = member
    end
  end
  return members, n == CHUNK
end

-- Removes members, and the lease of a tag that has none left.
local function release(members)
  spread('ZREM', HELD, members)
  local start
  for _, member in ipairs(members) do
    if not start or find(member, start, 1, true) ~= 1 then
      start = sub(member, 1, find(member, '\0', 1, true))
      if #own(sub(start, 1, -2), '', 1) == 0 then
        redis.call('ZREM', LEASES, sub(start, 1, -2), start)
      end
    end
  end
end

-- Makes held messages free, due at `due` or (nil) when they were due before, with `failed` more tries; gives how
-- many of them BYTES allowed.
local function give_back(kept, due, failed)
  local found = documents(HASH, kept.ids)
  local index, hash = {}, {}
  for i, document in ipairs(found) do
    local moment = due or due_of(kept[i])
    index[2 * i - 1], index[2 * i] = moment, kept.ids[i]
    local parts = document and open(document)
    if parts then
      parts.tries = parts.tries + failed
      hash[#hash + 1], hash[#hash + 2] = kept.ids[i], close(parts, moment)
    end
  end
  spread('ZADD', INDEX, index)
  spread('HSET', HASH, hash)
  release(take(kept, #found))
  return #found
end

-- Frees what leases that have ended hold; each such message has failed once more. Gives false where CHUNK ended it
-- early. A lease that is being renewed has two ends, and each is swept for itself.
local function sweep(now)
  local left = CHUNK
  while true do
    local ended = redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'WITHSCORES', 'LIMIT', 0, 1)
    if #ended == 0 then
      return true
    end
    drain()
    local tag, cursor = string.match(ended[1], '^[^%z]*'), ''
    while true do
      local members = own(tag, cursor, CHUNK)
      if #members == 0 then
        break
      end
      cursor = members[#members]
      local kept, lost = examine(members)
      local over = { ids = {} }
      for i, member in ipairs(kept) do
        if kept.ends[i] == ended[2] then
          local n = #over + 1
          over[n], over.ids[n] = member, kept.ids[i]
        end
      end
      local done = give_back(over, nil, 1)
      release(lost)
      left = left - done - #lost
      if done < #over or left <= 0 then
        return false
      end
    end
    redis.call('ZREM', LEASES, ended[1])
  end
end
