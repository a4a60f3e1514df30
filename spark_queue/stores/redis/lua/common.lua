-- How a queue lies in Redis, and the steps that the scripts share: every script is this file followed by its own.
--
-- As keuss (`redis-oq`) keeps them, so that its programs share the queue:
--   KEYS[1] keuss:q:ordered_queue:index:<q>  zset  id -> ms from which it may be taken: it is due, or its lease ends
--   KEYS[2] keuss:q:ordered_queue:hash:<q>   hash  id -> {"_id","payload","tries","hdrs","mature"[,"type":"buffer"]
--                                                  [,"reserved":bool]}
-- Ours:
--   KEYS[3] spark_queue:<q>:held             zset  run -> 0: tag NUL due NUL id {NUL id}, messages that are due at one
--                                                  moment, in the order of their ids. `due` (ms) has 15 digits, and no
--                                                  two runs of a tag overlap, so the order of the text is that of
--                                                  (tag, due, id)
--   KEYS[4] spark_queue:<q>:leases           zset  tag -> ms at which its lease ends; while a renewal is under way
--                                                  also tag NUL -> the end that is being left
--   KEYS[5] spark_queue:<q>:history          hash  id -> {"processed":ms,"mature":ms[,"consumer":"…","outcome":"…"],
--                                                  "message":the document}
--   KEYS[6] spark_queue:<q>:processed        zset  id -> ms at which the history forgets it
--   KEYS[7] spark_queue:<q>:buckets          zset  id -> how many messages it holds, of each bucket (keuss may have
--                                                  removed it)
-- move.lua has the index, the hash and the buckets of the other queue as KEYS[8] to KEYS[10]; the scripts about what is
-- staged have a chunk of it as KEYS[8]:
--   spark_queue:<q>:staged:<stage>/<part>    string  rows as push.lua takes them, in MessagePack; '' is what is left of a chunk that is over, for LATE ms. <part>
--                                                  ends with the number of its messages
-- Beside the queues, where the script of a queue cannot reach (on a cluster they lie elsewhere):
--   spark_queue.sink:<sink>                  set   stage/part NUL queue, of each chunk that may be there
--   spark_queue.note:<key>                   hash  value -> JSON, version -> how often it was written, written -> ms of the last time
--
-- The fence: a tag holds a message while a run of it has the id and the index has the message at an end of the tag's
-- lease. keuss, which knows nothing of `held`, moves a message in the index whenever it takes or gives it back.
--
-- Ahead of this file stand: CHUNK, the most messages that a call changes, so that the server is not blocked for long;
-- RUN, the most of them in one run; BYTES, at which a call stops reading documents; NEVER, the end of a lease that does
-- not end.

-- A record is a message or a bucket of many, which its id tells. Scripts treat them alike, and count messages.
--
-- A layout with lists has keys of its own in the place of keuss', and others behind the last one; its files stand between
-- this one and a script: see lists/lists.lua.
local INDEX, HASH, HELD, LEASES, HISTORY, PROCESSED, BUCKETS = unpack(KEYS, 1, 7)
local WIDTH = 4000 -- arguments of one command: unpack() takes less than 8000
local LATE = 600000 -- ms after which a call that its client has given up comes no more
local MARK = 127 -- as no id of a message begins, and that of each bucket
local EACH = 20 -- what a lease that ends costs beside its messages, as many of these
local find, sub, format, byte, gmatch, concat =
  string.find, string.sub, string.format, string.byte, string.gmatch, table.concat
local floor, min, max = math.floor, math.min, math.max

local lists -- what a layout with lists does besides; nil where there are none

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

-- Calls a command with more arguments than one call takes: all of a list, or those from `first` to `last`.
local function spread(command, key, arguments, first, last)
  last = last or #arguments
  for i = first or 1, last, WIDTH do
    redis.call(command, key, unpack(arguments, i, min(i + WIDTH - 1, last)))
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
    step = max(1, min(100, floor((BYTES - bytes) * at / (bytes + 1)))) -- as many as will fit if they are alike
  end
  return found
end

local function take(list, most)
  if #list <= most then
    return list
  end
  local taken = {}
  for i = 1, most do
    taken[i] = list[i]
  end
  return taken
end

-- How many messages the record with this id holds: as `rows_of` in buckets.py, which says what 1 is for.
local function rows_of(id)
  local rows = byte(id) == MARK and tonumber(string.match(id, '\127(%d%d?%d?%d?%d?%d?)\127[^\127]*$'))
  return rows and rows >= 1 and rows or 1
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

-- How many messages these records hold.
local function weigh(ids)
  local rows = #ids
  for _, id in ipairs(buckets_of(ids)) do
    rows = rows + rows_of(id) - 1
  end
  return rows
end

-- Counts buckets among those of a queue.
local function enlist(key, ids)
  for _, id in ipairs(buckets_of(ids)) do
    redis.call('ZADD', key, rows_of(id), id)
  end
end

-- Removes records from the queue; `rank`: where they stand in the index, if they stand side by side.
local function remove(ids, rank)
  if rank then
    redis.call('ZREMRANGEBYRANK', INDEX, rank, rank + #ids - 1)
  else
    spread('ZREM', INDEX, ids)
  end
  spread('HDEL', HASH, ids)
  spread('ZREM', BUCKETS, buckets_of(ids))
  if lists then
    lists.forget(ids)
  end
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

-- Makes rows records, but for ids that the queue holds already; gives the number of messages.
-- Rows: how many messages they hold, due, id, due, id, …, then id, document, id, document, …
-- `front`: before what is in the list.
local function push(rows, front)
  if lists then
    return lists.enter(rows, nil, front)
  end
  local n, added = (#rows - 1) / 4, 0
  for i = 2, 2 * n + 1, WIDTH do
    added = added + redis.call('ZADD', INDEX, 'NX', unpack(rows, i, min(i + WIDTH - 1, 2 * n + 1)))
  end
  if added == n and tonumber(rows[1]) == n then
    spread('HSET', HASH, rows, 2 * n + 2, 4 * n + 1)
    return n
  end
  local new, hash, seen = {}, {}, {} -- some were there, or come twice, or are buckets
  for i = 2 * n + 2, 4 * n + 1, 2 do
    local id = rows[i]
    if not seen[id] and redis.call('HEXISTS', HASH, id) == 0 then
      seen[id] = true
      new[#new + 1] = id
      hash[#hash + 1], hash[#hash + 2] = id, rows[i + 1]
    end
  end
  spread('HSET', HASH, hash)
  enlist(BUCKETS, new)
  return weigh(new)
end

-- Ends a chunk that is published or removed. What is left of it keeps stage.lua from writing it again: a call may come
-- late, its client having given up, or from a writer who was thought dead.
local function finish(chunk)
  redis.call('UNLINK', chunk) -- first: it needs no memory
  redis.call('SET', chunk, '', 'PX', LATE)
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

-- Takes a document apart: `tries`, `headers` (JSON text) and the rest. Nil for what is not a document, and for one
-- whose tries or headers are of another type: it stays as it is, and is found damaged when it is read.
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
  if not sound then
    return nil
  end
  local count, own = value(document, spans, 'tries') or 'null', value(document, spans, 'hdrs') or 'null'
  local number = count == 'null' and 0 or tonumber(count)
  own = own == 'null' and '{}' or own
  if number and math.abs(number) < 2147483647 and byte(own) == 123 and pcall(cjson.decode, own) then
    return {
      document = document,
      tries = number,
      headers = own,
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

-- The ends of a tag's lease: the one, and the one that a renewal is leaving.
local function ends(tag)
  return redis.call('ZSCORE', LEASES, tag), redis.call('ZSCORE', LEASES, tag .. '\0')
end

-- Messages as runs name them: `ids`, and in `at` the number of the run of each; of each run its text, its start (tag
-- NUL due NUL), its tag, and when it is due, once that was asked. Some of these messages have the same runs.
local function some(of)
  return of and { runs = of.runs, starts = of.starts, tags = of.tags, dues = of.dues, ids = {}, at = {} }
    or { runs = {}, starts = {}, tags = {}, dues = {}, ids = {}, at = {} }
end

-- Adds the messages of a run.
local function read(messages, run)
  local first = find(run, '\0', 1, true)
  local r, ids, at = #messages.runs + 1, messages.ids, messages.at
  messages.runs[r], messages.starts[r], messages.tags[r] = run, sub(run, 1, first + 16), sub(run, 1, first - 1)
  local n = #ids
  for id in gmatch(sub(run, first + 17), '[^%z]+') do
    n = n + 1
    ids[n], at[n] = id, r
  end
end

-- When message i is due.
local function due_of(messages, i)
  local r = messages.at[i]
  local due = messages.dues[r]
  if not due then
    due = digits(tonumber(sub(messages.starts[r], -16, -2)))
    messages.dues[r] = due
  end
  return due
end

-- Message i as a run of its own.
local function single(messages, i)
  return messages.starts[messages.at[i]] .. messages.ids[i]
end

-- Copies message i to others of the same runs.
local function add(others, messages, i)
  local n = #others.ids + 1
  others.ids[n], others.at[n] = messages.ids[i], messages.at[i]
end

-- Those from message `first` on.
local function from(messages, first)
  local rest = some(messages)
  for i = first, #messages.ids do
    add(rest, messages, i)
  end
  return rest
end

-- Messages that stand in the order of their runs as runs again: the text of each.
local function as_runs(messages)
  local found, i = {}, 1
  while i <= #messages.ids do
    local r, last = messages.at[i], i
    while messages.at[last + 1] == r do
      last = last + 1
    end
    found[#found + 1] = messages.starts[r] .. concat(messages.ids, '\0', i, last)
    i = last + 1
  end
  return found
end

-- Adds the next runs within a range until there are `most` messages, or a run more; gives whether that is all of it.
local function scan(messages, low, high, most)
  while #messages.ids < most do
    local step = math.ceil((most - #messages.ids) / RUN)
    local runs = redis.call('ZRANGEBYLEX', HELD, low, high, 'LIMIT', 0, step)
    for _, run in ipairs(runs) do
      read(messages, run)
    end
    if #runs < step then
      return true
    end
    low = '(' .. runs[#runs]
  end
  return false
end

-- About `most` messages of this very tag that come after the one of a run ('': from the first), and whether no more do.
local function own(tag, last, most)
  local messages = some()
  local all = scan(messages, '[' .. (last == '' and tag .. '\0' or last .. '\1'), '(' .. tag .. '\1', most)
  return messages, all
end

-- What stands in the index from one record to another, `most` of them at most, where all of it ends as the lease of a
-- tag does, as what was claimed at once does: the ids, their end, and the rank of the first. Asks for no score of each.
local function stretch(tag, head, tail, most)
  local first, last = redis.call('ZRANK', INDEX, head), redis.call('ZRANK', INDEX, tail)
  if not (first and last and last >= first and last - first < most) then
    return nil
  end
  local till = redis.call('ZSCORE', INDEX, head)
  local one, other = ends(tag)
  if till ~= redis.call('ZSCORE', INDEX, tail) or not (till == one or till == other) then
    return nil
  end
  return redis.call('ZRANGE', INDEX, first, last), till, first
end

-- The messages of a run, where all of them are held still and stand side by side: their ids, and the rank of the first.
-- Nil for others, and for a run of a few, which are looked at by examine() together with those of other runs.
local function whole(run)
  local first = find(run, '\0', 1, true) + 17
  local stop, text = find(run, '\0', first, true), sub(run, first)
  if not stop or #text < 2 * RUN then
    return nil
  end
  local head, tail = sub(run, first, stop - 1), sub(run, 1 - find(string.reverse(run), '\0', 1, true))
  local ids, _, rank = stretch(sub(run, 1, first - 18), head, tail, RUN)
  if ids and concat(ids, '\0') == text then
    return ids, rank
  end
end

-- The end of the lease of messages that are all held by one tag and stand side by side, and the rank of the first of
-- them; nil for others.
local function held_whole(messages)
  local ids, tags, n = messages.ids, messages.tags, #messages.ids
  if n < 2 or tags[1] == '' then
    return nil
  end
  for _, tag in ipairs(tags) do
    if tag ~= tags[1] then
      return nil
    end
  end
  local found, till, rank = stretch(tags[1], ids[1], ids[n], n)
  if not found or #found ~= n then
    return nil
  end
  for i, id in ipairs(found) do
    if id ~= ids[i] then
      return nil
    end
  end
  return till, rank
end

-- Sorts messages into those that are held still and those that are lost. The leases of the first end in `ends`, or all
-- of them in `till`; then `rank` is where the first stands in the index.
-- A run without a tag is none at all: it stands for a message that was seen free, due at that moment in the index. It
-- is kept while that is still so and keuss does not hold it.
local function examine(messages)
  local till, rank = held_whole(messages)
  if till then
    messages.till, messages.rank = till, rank
    return messages, some(messages)
  end
  local now, known, first, second = clock(), nil, nil, nil
  local kept, lost, n = some(messages), some(messages), 0
  local ids, at = messages.ids, messages.at
  kept.ends = {}
  for i, score in ipairs(gather('ZMSCORE', INDEX, ids)) do
    local r, holds = at[i], nil
    if messages.tags[r] == '' then
      local due = due_of(messages, i)
      holds = score and digits(floor(tonumber(score))) == due
      holds = holds and not (tonumber(due) > now and marked(redis.call('HGET', HASH, ids[i])))
    else
      if messages.tags[r] ~= known then
        known = messages.tags[r]
        first, second = ends(known)
      end
      holds = score and (score == first or score == second)
    end
    if holds then
      n = n + 1
      kept.ids[n], kept.at[n], kept.ends[n] = ids[i], r, score
    else
      add(lost, messages, i)
    end
  end
  return kept, lost
end

-- Whether a text comes before another, byte by byte: Lua's own order is that of a language.
local function before(one, other)
  for i = 1, min(#one, #other) do
    local mine, theirs = byte(one, i), byte(other, i)
    if mine ~= theirs then
      return mine < theirs
    end
  end
  return #one < #other
end

-- Adds a run of ids[first] to ids[last] to what is held. Where it would overlap with others, all are taken apart.
local function hold(start, ids, first, last)
  local bound, apart, whole = '(' .. start .. ids[last] .. '\1', false, nil
  while true do
    whole = redis.call('ZREVRANGEBYLEX', HELD, bound, '[' .. start, 'LIMIT', 0, 1)[1]
    local other = some()
    if whole then
      read(other, whole)
    end
    if not whole or before(other.ids[#other.ids], ids[first]) then
      break
    end
    apart, bound = true, '(' .. whole
    if #other.ids > 1 then
      redis.call('ZREM', HELD, whole)
      for i = 1, #other.ids do
        redis.call('ZADD', HELD, 0, single(other, i))
      end
    end
  end
  if not apart then
    redis.call('ZADD', HELD, 0, start .. concat(ids, '\0', first, last))
  else
    for i = first, last do
      redis.call('ZADD', HELD, 0, start .. ids[i])
    end
  end
end

-- Whether `held` has this run of one message, which is taken out of a longer one for that.
local function stands_alone(named)
  if redis.call('ZSCORE', HELD, named) then
    return true
  end
  local start = sub(named, 1, find(named, '\0', 1, true) + 16)
  local whole = redis.call('ZREVRANGEBYLEX', HELD, '(' .. named .. '\1', '[' .. start, 'LIMIT', 0, 1)[1]
  if not whole or not find(whole .. '\0', '\0' .. sub(named, #start + 1) .. '\0', #start, true) then
    return false
  end
  local messages, alone = some(), {}
  read(messages, whole)
  for i = 1, #messages.ids do
    alone[2 * i - 1], alone[2 * i] = 0, single(messages, i)
  end
  redis.call('ZREM', HELD, whole)
  spread('ZADD', HELD, alone)
  return true
end

-- What a call is about: the messages that the caller names from ARGV[first] on, each as a run of its own, else the
-- next ones of the tag's tree. Also gives whether there are more of these.
local function selection(tag, first)
  local messages = some()
  if ARGV[first] then
    local named = { unpack(ARGV, first) }
    local present = gather('ZMSCORE', HELD, named)
    for i, run in ipairs(named) do
      if present[i] or byte(run) == 0 or stands_alone(run) then
        read(messages, run)
      end
    end
    return messages, false
  end
  for _, range in ipairs(ranges(tag)) do
    if not scan(messages, range[1], range[2], CHUNK) then
      return messages, true
    end
  end
  return messages, false
end

-- Removes the leases of those of these tags that hold nothing any more.
local function forget_empty(tags)
  local known
  for _, tag in ipairs(tags) do
    if tag ~= known then
      known = tag
      if #redis.call('ZRANGEBYLEX', HELD, '[' .. tag .. '\0', '(' .. tag .. '\1', 'LIMIT', 0, 1) == 0 then
        redis.call('ZREM', LEASES, tag, tag .. '\0')
      end
    end
  end
end

-- Removes messages from their runs, but for `stays`, which are some of them; and the lease of a tag that has none left.
local function release(messages, stays)
  if stays and #stays.ids == #messages.ids then
    return
  end
  local left, gone, here, same = {}, {}, {}, {}
  for _, run in ipairs(messages.runs) do
    here[run] = true
  end
  for _, run in ipairs(stays and as_runs(stays) or {}) do
    if here[run] then
      same[run] = true
    else
      left[#left + 1], left[#left + 2] = 0, run
    end
  end
  for _, run in ipairs(messages.runs) do
    if not same[run] then
      gone[#gone + 1] = run
    end
  end
  spread('ZREM', HELD, gone)
  spread('ZADD', HELD, left)
  forget_empty(messages.tags)
end

-- Makes held messages free, due at `due` or (nil) when they were due before, with `failed` more tries; gives how
-- many of them BYTES allowed. They are in their runs still.
local function give_back(kept, due, failed)
  local found = documents(HASH, kept.ids)
  local index, hash = {}, {}
  for i, document in ipairs(found) do
    local moment = due or due_of(kept, i)
    index[2 * i - 1], index[2 * i] = moment, kept.ids[i]
    local parts = document and open(document)
    if parts then
      parts.tries = parts.tries + failed
      hash[#hash + 1], hash[#hash + 2] = kept.ids[i], close(parts, moment)
    end
  end
  spread('ZADD', INDEX, index)
  spread('HSET', HASH, hash)
  return #found
end

-- Has the history tell of those of the messages that `told` has the document of, for `history` ms.
local function remember(messages, told, history, consumer, outcome)
  local now, entries, ends_of, n = clock(), {}, {}, 0
  local forgotten, when = digits(now + history), '{"processed":' .. digits(now) .. ',"mature":'
  local who = ',"consumer":"' .. consumer .. '","outcome":"' .. outcome .. '","message":'
  for i, id in ipairs(messages.ids) do
    if told[i] then
      entries[n + 1], entries[n + 2] = id, when .. due_of(messages, i) .. who .. told[i] .. '}'
      ends_of[n + 1], ends_of[n + 2] = forgotten, id
      n = n + 2
    end
  end
  spread('HSET', HISTORY, entries)
  spread('ZADD', PROCESSED, ends_of)
  local old = redis.call('ZRANGEBYSCORE', PROCESSED, '-inf', digits(now), 'LIMIT', 0, CHUNK)
  spread('ZREM', PROCESSED, old)
  spread('HDEL', HISTORY, old)
  local last = redis.call('ZREVRANGE', PROCESSED, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', HISTORY, last)
    redis.call('PEXPIREAT', PROCESSED, last)
  end
end

-- Frees what leases that have ended hold; each such message has failed once more. Gives false where CHUNK ended it
-- early. A lease that is being renewed has two ends, and each is swept for itself.
local function sweep(now)
  local left = CHUNK
  while true do
    local ended = redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'WITHSCORES', 'LIMIT', 0, 1)
    if #ended == 0 then
      return true
    elseif left <= 0 then
      return false
    end
    drain()
    local tag, last, all = string.match(ended[1], '^[^%z]*'), '', false
    while not all do
      local found
      found, all = own(tag, last, CHUNK)
      if #found.ids > 0 then
        last = single(found, #found.ids)
        local kept, lost = examine(found)
        local over = some(found)
        for i = 1, #kept.ids do
          if (kept.till or kept.ends[i]) == ended[2] then
            add(over, kept, i)
          end
        end
        local done = give_back(over, nil, 1)
        if lists then
          lists.returned(take(over.ids, done), true)
        end
        local stays, n = some(found), 0
        for i = 1, #kept.ids do
          local is_over = (kept.till or kept.ends[i]) == ended[2]
          n = n + (is_over and 1 or 0)
          if not is_over or n > done then
            add(stays, kept, i)
          end
        end
        release(found, stays)
        left = left - done - #lost.ids
        if done < #over.ids or (left <= 0 and not all) then
          return false
        end
      end
    end
    redis.call('ZREM', LEASES, ended[1])
    left = left - EACH
  end
end
