-- The keys of a queue in Redis, and the steps that the scripts share. Each script is this file,
-- followed by its own file.
--
-- keuss' own keys (`redis-oq`), so that its programs can share the queue:
-- * KEYS[1] `keuss:q:ordered_queue:index:<q>`, zset: id -> time (ms) from which a client may take
--   the message. It is the due time, or the end of the lease. Redis sorts messages of one score by
--   id. So a message is a PART of a ms later if its id does not put it after those before it.
-- * KEYS[2] `keuss:q:ordered_queue:hash:<q>`, hash: id -> the document,
--   `{"_id","payload","tries","hdrs","mature"[,"pushed"][,"type":"buffer"][,"reserved":bool]}`.
--   `pushed` is ours.
--
-- Our own keys:
-- * KEYS[3] `spark_queue:<q>:held`, zset: run -> 0. A run is `tag NUL due NUL id {NUL id}`:
--   messages of one tag with the same due time (ms, 15 digits), in the order of (score, id). A score
--   may be some parts of a ms later. Then `0xFF`, their number in 4 digits, and NUL are before the id.
--   They hold for the ids that follow, too. No two runs of a tag overlap, and no id begins with 0xFF.
--   So the order of the text is that of (tag, score, id).
-- * KEYS[4] `spark_queue:<q>:leases`, zset: tag -> time (ms) at which its lease ends. During a
--   renewal also `tag NUL` -> the previous end.
-- * KEYS[5] `spark_queue:<q>:history`, hash: id ->
--   `{"processed":ms,"mature":ms[,"consumer":"…","outcome":"…"],"message":<document>}`.
-- * KEYS[6] `spark_queue:<q>:processed`, zset: id -> time (ms) at which its history entry expires.
-- * KEYS[7] `spark_queue:<q>:buckets`, zset: id of a bucket -> number of its messages. keuss may
--   have removed the bucket.
-- * KEYS[8] of a script about staged messages `spark_queue:<q>:staged:<stage>/<part>`, string: the
--   rows of a chunk in MessagePack, as push.lua takes them. `<part>` ends with the number of its
--   messages. After a publish or a removal, an empty string stays for LATE_CALL_MS.
-- * KEYS[8] to KEYS[10] of move.lua: the index, the hash and the buckets of the target queue.
--
-- Keys that belong to no queue. In a cluster they may be on another node, so the scripts of a queue
-- do not use them:
-- * `spark_queue.sink:<sink>`, set: `stage/part NUL queue` of each chunk that may exist.
-- * `spark_queue.note:<key>`, hash: value -> JSON, version -> number of writes, written -> time
--   (ms) of the last one.
--
-- The fence: a tag holds a message if two conditions are met. A run of the tag has its id, and its
-- score in the index is an end of the tag's lease. keuss does not know `held`, but it changes the
-- score whenever it reserves or releases a message.
--
-- `load_scripts` puts these constants before this file:
-- * CHUNK: most messages that one call changes, so that it does not block the server for long.
-- * RUN: most messages of one run.
-- * BYTES: after this many bytes of documents, a call reads no more of them.
-- * NEVER: the end of a lease that does not end.
-- * BUCKET_BYTES: most bytes of messages in a bucket.
-- * PARTS: into how many parts a ms is divided.

-- A record is a message or a bucket of many messages; its id says which. Scripts treat both alike,
-- and count messages.
--
-- A layout with lists has its own keys in place of keuss' keys, and more keys at the end. Its files
-- come between this file and the script: see lists/lists.lua.
local INDEX, HASH, HELD, LEASES, HISTORY, PROCESSED, BUCKETS = unpack(KEYS, 1, 7)
local MAX_ARGUMENTS = 4000 -- most arguments of one command: unpack() takes less than 8000
local LATE_CALL_MS = 600000 -- ms after which a call that its client has abandoned no longer arrives
local BUCKET_MARK = 127 -- the first byte of each bucket's id, and of no message's id
local ORDERED_BUCKET = '^\127' .. string.rep('[0-9a-f]', 24) .. '\127' -- the ids of its messages grow
local WINDOW = 4096 -- a document that is longer is not walked through, but read from its ends
local PART_MARK = 255 -- the byte before the number of parts in a run; UTF-8 does not have it
local LEASE_COST = 20 -- what the sweep of a lease costs besides its messages, as a number of messages
local find, sub, format, byte, gmatch, concat =
  string.find, string.sub, string.format, string.byte, string.gmatch, table.concat
local floor, min, max = math.floor, math.min, math.max

local lists -- functions of a layout with lists; nil in other layouts

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

local function digits(number)
  return format('%.0f', number)
end

-- Let a script drain a full Redis. With its memory full, Redis refuses the first write of a script
-- if that write may need memory, and no later one. This first write needs none.
local function allow_when_full()
  redis.call('ZREM', LEASES, '')
end

-- Call a write command with more arguments than one call takes: all of a list, or those from
-- `first` to `last`.
local function call_many(command, key, arguments, first, last)
  last = last or #arguments
  for i = first or 1, last, MAX_ARGUMENTS do
    redis.call(command, key, unpack(arguments, i, min(i + MAX_ARGUMENTS - 1, last)))
  end
end

-- Call a read command that returns one answer for each argument. Return all answers.
local function query_many(command, key, arguments)
  if #arguments <= MAX_ARGUMENTS then
    return #arguments > 0 and redis.call(command, key, unpack(arguments)) or {}
  end
  local answers = {}
  for at = 0, #arguments - 1, MAX_ARGUMENTS do
    for i, answer in
      ipairs(redis.call(command, key, unpack(arguments, at + 1, min(at + MAX_ARGUMENTS, #arguments))))
    do
      answers[at + i] = answer
    end
  end
  return answers
end

-- Return the documents of the first ids, false for a missing one: at least one document, and about
-- BYTES at most.
local function read_documents(key, ids)
  local found, bytes, at, step = {}, 0, 0, 1
  while at < #ids and bytes < BYTES do
    for i, document in ipairs(redis.call('HMGET', key, unpack(ids, at + 1, min(at + step, #ids)))) do
      found[at + i] = document
      bytes = bytes + #(document or '')
    end
    at = at + step
    step = max(1, min(100, floor((BYTES - bytes) * at / (bytes + 1)))) -- as many as fit if they have the same size
  end
  return found
end

local function first_items(list, limit)
  if #list <= limit then
    return list
  end
  local taken = {}
  for i = 1, limit do
    taken[i] = list[i]
  end
  return taken
end

-- Return the number of messages in the record with this id. messages/buckets.py explains the 1.
local function rows_of(id)
  local rows = byte(id) == BUCKET_MARK and tonumber(string.match(id, '\127(%d%d?%d?%d?%d?%d?)\127[^\127]*$'))
  return rows and rows >= 1 and rows or 1
end

-- Return the bytes of a record's messages in memory. `stored`: those of its document.
-- messages/buckets.py explains a bucket without that number in its id.
local function bytes_of(id, stored)
  if byte(id) ~= BUCKET_MARK then
    return stored
  end
  local size = string.match(id, '%+(%d+)$')
  return size and #size <= 12 and tonumber(size) or max(stored, BUCKET_BYTES)
end

-- Return those of these ids that are buckets.
local function buckets_of(ids)
  local found = {}
  for _, id in ipairs(ids) do
    if byte(id) == BUCKET_MARK then
      found[#found + 1] = id
    end
  end
  return found
end

-- Return the number of messages in these records.
local function count_messages(ids)
  local rows = #ids
  for _, id in ipairs(buckets_of(ids)) do
    rows = rows + rows_of(id) - 1
  end
  return rows
end

-- Add the buckets among these records to the buckets of a queue.
local function register_buckets(key, ids)
  for _, id in ipairs(buckets_of(ids)) do
    redis.call('ZADD', key, rows_of(id), id)
  end
end

-- Remove records from the queue. `rank`: the rank of the first one in the index, if they are
-- contiguous there. `no_buckets`: none of them is a bucket.
local function remove_records(ids, rank, no_buckets)
  if rank then
    redis.call('ZREMRANGEBYRANK', INDEX, rank, rank + #ids - 1)
  else
    call_many('ZREM', INDEX, ids)
  end
  call_many('HDEL', HASH, ids)
  call_many('ZREM', BUCKETS, no_buckets and {} or buckets_of(ids))
  if lists then
    lists.on_removed(ids)
  end
end

-- Return by how many messages exceed records, among records with a score up to `latest`.
local function count_extra_messages(latest)
  local rows = 0
  local found = redis.call('ZRANGE', BUCKETS, 0, -1)
  for i, score in ipairs(query_many('ZMSCORE', INDEX, found)) do
    if score and floor(tonumber(score)) <= latest then
      rows = rows + rows_of(found[i]) - 1
    end
  end
  return rows
end

-- Return a time (ms), which may have parts, as a score.
local function score_text(moment)
  return format('%.17g', moment)
end

-- Return the end of a range of the index: the scores that are due by a time (ms).
local function due_by(moment)
  return '(' .. digits(moment + 1)
end

-- Return whether a text comes before another, byte by byte. Lua's own comparison depends on the
-- language of the system.
local function is_before(one, other)
  for i = 1, min(#one, #other) do
    local mine, theirs = byte(one, i), byte(other, i)
    if mine ~= theirs then
      return mine < theirs
    end
  end
  return #one < #other
end

-- Return whether a record is a bucket of messages whose ids do not have their order.
local function is_unordered_bucket(id)
  return byte(id) == BUCKET_MARK and not find(id, ORDERED_BUCKET)
end

-- Return the first score (ms with parts) that puts a record after the last one, which has `score`. A
-- bucket whose messages have ids in another order takes parts of its own. It takes one for each
-- message, so that they fit in if it is split.
local function score_after(score, last, id)
  local parts = is_unordered_bucket(last) and rows_of(last)
  if not parts and not is_unordered_bucket(id) and is_before(last, id) then
    return score
  end
  return (floor(score * PARTS) + (parts or 1)) / PARTS
end

-- Return the first score (ms with parts) from `moment` on that puts an id after all messages of its
-- ms in the index.
local function next_score(index, moment, id)
  while true do
    local ms = floor(moment)
    local last, score =
      unpack(redis.call('ZREVRANGEBYSCORE', index, due_by(ms), digits(ms), 'WITHSCORES', 'LIMIT', 0, 1))
    moment = last and max(moment, score_after(tonumber(score), last, id)) or moment
    if not last or floor(moment) == ms then
      return moment
    end
  end
end

-- Return the end (ms) of a lease that begins now. `lease`: ms, '' never ends.
local function new_lease_end(lease)
  return digits(lease == '' and NEVER or min(now_ms() + tonumber(lease), NEVER))
end

-- --- messages in ---------------------------------------------------------------------------------------------------

-- Return where the last score of a group is that begins in rows[first]. Each score of a group is that
-- of the row before, or one part more. `last`: where the last score of all rows is.
local function group_end(rows, first, last)
  local text, score = rows[first], tonumber(rows[first])
  for i = first + 2, last, 2 do
    local next_text = rows[i]
    if next_text ~= text then
      local next_score = tonumber(next_text)
      if (next_score - score) * PARTS ~= 1 then
        return i - 2
      end
      text, score = next_text, next_score
    end
  end
  return last
end

-- Raise the scores of a group by the same, so that it comes after all messages of its due time.
local function place_after(index, rows, first, last)
  local own = tonumber(rows[first])
  local moment = next_score(index, own, rows[first + 1])
  if moment ~= own then
    for i = first, last, 2 do
      rows[i] = score_text(tonumber(rows[i]) + moment - own)
    end
  end
end

-- Make the rows records of the queue, except for ids that it holds already. Return the number of
-- new messages.
-- `rows`: the number of messages, then score, id, score, id, …, then id, document, id, document, …
-- `front`: in a layout with lists, put them before the messages in the list. `placed`: their scores
-- are final. Else they come after all messages of the same due time.
local function push(rows, front, placed)
  if lists then
    return lists.push(rows, nil, front)
  end
  local n, added = (#rows - 1) / 4, 0
  local first = 2
  while first <= 2 * n do
    local last = group_end(rows, first, 2 * n)
    if not placed then
      place_after(INDEX, rows, first, last)
    end
    for i = first, last + 1, MAX_ARGUMENTS do
      added = added + redis.call('ZADD', INDEX, 'NX', unpack(rows, i, min(i + MAX_ARGUMENTS - 1, last + 1)))
    end
    first = last + 2
  end
  -- Either all rows are buckets, perhaps of one message each, or none is.
  if added == n and tonumber(rows[1]) == n and byte(rows[2 * n + 2] or '') ~= BUCKET_MARK then
    call_many('HSET', HASH, rows, 2 * n + 2, 4 * n + 1)
    return n
  end
  local new, hash, seen = {}, {}, {} -- some ids exist already, occur twice, or are buckets
  for i = 2 * n + 2, 4 * n + 1, 2 do
    local id = rows[i]
    if not seen[id] and redis.call('HEXISTS', HASH, id) == 0 then
      seen[id] = true
      new[#new + 1] = id
      hash[#hash + 1], hash[#hash + 2] = id, rows[i + 1]
    end
  end
  call_many('HSET', HASH, hash)
  register_buckets(BUCKETS, new)
  return count_messages(new)
end

-- End a chunk that was published or removed. The empty string that stays keeps stage.lua from
-- writing the chunk again. Such a call may be late: its client has abandoned it, or was believed
-- dead.
local function finish_chunk(chunk)
  redis.call('UNLINK', chunk) -- first: it needs no memory
  redis.call('SET', chunk, '', 'PX', LATE_CALL_MS)
end

-- --- documents: edited as text, so that the payload keeps its bytes ---------------------------------------------

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

-- Add the spans of the last fields of a JSON object to `spans`, if these are scalars, texts without
-- a backslash, or the headers. Return where the value before them ends. None of these is within
-- another value. Texts have no `,"` inside. Only the object itself ends after its last field.
local function field_spans_from_end(text, spans)
  local window = sub(text, -WINDOW, -2)
  local offset = #text - 1 - #window
  while true do
    local at, name, value = string.match(window, '^.*(),"([%a_]+)":()[^"{}%[%],:%s]+$')
    if not at then
      at, name, value = string.match(window, '^.*(),"([%a_]+)":()"[^"\\]*"$')
    end
    if not at then
      at, name, value = string.match(window, '^.*(),"(hdrs)":(){')
      local ok, last = pcall(value_end, window, value or 1)
      at = ok and last == #window and at
    end
    if not at then
      return offset + #window
    end
    spans[name] = spans[name] or { offset + value, offset + #window }
    window = sub(window, 1, at - 1)
  end
end

-- Return where the values of a JSON object's own fields are: name -> {first, last}. Raise an error
-- if the text is not JSON. To walk through a payload takes 0.1 s per MB. So a long document is read
-- from both ends, if its tries and headers are there.
local function field_spans(text)
  local spans = {}
  local _, at = find(text, '^%s*{')
  while true do
    local _, quote = find(text, '^[%s,]*"', at + 1)
    if not quote then
      return spans
    end
    local closing = string_end(text, quote)
    local _, colon = find(text, '^%s*:%s*', closing + 1)
    local name = sub(text, quote + 1, closing - 1)
    if name == 'payload' and #text - colon > WINDOW and sub(text, -1) == '}' then
      local all = {}
      for known, span in pairs(spans) do
        all[known] = span
      end
      local last = field_spans_from_end(text, all)
      if all.tries and all.hdrs and last > colon then
        all.payload = { colon + 1, last }
        return all
      end
    end
    at = value_end(text, colon + 1)
    spans[name] = { colon + 1, at }
  end
end

local function field_text(text, spans, name)
  return spans[name] and sub(text, unpack(spans[name]))
end

-- Return a JSON object with other values (JSON text, by name). It is copied once, however many they
-- are.
local function set_fields(text, spans, values)
  local changed, added = {}, {}
  for name, json in pairs(values) do
    if spans[name] then
      changed[#changed + 1] = { spans[name][1], spans[name][2], json }
    else
      added[#added + 1] = '"' .. name .. '":' .. json
    end
  end
  table.sort(changed, function(one, other)
    return one[1] < other[1]
  end)
  local parts, at = {}, 1
  for _, one in ipairs(changed) do
    parts[#parts + 1] = sub(text, at, one[1] - 1)
    parts[#parts + 1] = one[3]
    at = one[2] + 1
  end
  local rest = sub(text, at)
  if #added > 0 then
    rest = string.match(rest, '^(.*)}') .. (next(spans) and ',' or '') .. concat(added, ',') .. '}'
  end
  parts[#parts + 1] = rest
  return concat(parts)
end

local function set_field(text, name, json)
  return set_fields(text, field_spans(text), { [name] = json })
end

-- The fields after the payload, as we write them.
local TAIL = ',"tries":(%d+),"hdrs":({.*}),"mature":(%d+)([^{}]*})$'

-- Find the fields after the payload of a long document. Return where the payload ends, tries,
-- headers, due time, and the rest. A pattern for the whole text would walk through all of it, and copy it.
local function find_tail(document)
  local size = WINDOW
  repeat
    local window = size < #document and sub(document, -size) or document
    local before = window
    for _ = 1, 2 do -- a header may have the name `tries`, too
      local at = string.match(before, '^.*(),"tries":%d')
      local tries, headers, due, tail = string.match(window, '^' .. TAIL, at or #window)
      if tries then
        return #document - #window + at - 1, tries, headers, due, tail
      end
      before = sub(window, 1, (at or 1) - 1)
    end
    size = size * 64
  until #window == #document or size > 64 * WINDOW
end

local known -- the fields that were parsed last: many messages have the same ones

-- Return where the payload of a document ends, and the fields after it: their `text`, `tries`,
-- `headers`, `due` and `tail`. Return nil if they are not as we write them.
local function find_fields(document)
  local size = known and #known.text
  if size and sub(document, -size) == known.text then
    local _, first = find(document, '^{"_id":"[^"]*","payload":')
    if first and first <= #document - size then
      return #document - size, known
    end
  end
  local at, tries, headers, due, tail
  if #document <= WINDOW then
    at, tries, headers, due, tail = string.match(document, '^{"_id":"[^"]*","payload":.*()' .. TAIL)
    at = at and at - 1
  elseif find(document, '^{"_id":"[^"]*","payload":') then
    at, tries, headers, due, tail = find_tail(document)
  end
  local rest = at and (string.match(tail, '^,"pushed":%d+(.*)$') or tail)
  if at and (rest == '}' or rest == ',"type":"buffer"}') and (headers == '{}' or pcall(cjson.decode, headers)) then
    local fields = { text = sub(document, at + 1), tries = tonumber(tries), headers = headers, due = due, tail = tail }
    known = #fields.text <= WINDOW and fields or known
    return at, fields
  end
end

-- Split a document into `tries`, `headers` (JSON text) and the rest. Return nil if it is not a
-- document, or if its tries or headers have another type. The scripts leave such a document as it
-- is, and its reader reports it as damaged.
local function parse_document(document)
  local at, before = find_fields(document)
  local last = at and sub(document, at - 20, at)
  -- no JSON value ends like this: these are fields between payload and tries
  if at and not (find(last, ':true$', -5) or find(last, ':false$', -6) or find(last, ',"type":"buffer"$', -16)) then
    local tries, headers = before.tries, before.headers
    return { document = document, head = at, tries = tries, headers = headers, tail = before.tail, before = before }
  end
  -- keuss has rewritten the document, and its fields may be in any order
  local ok, spans = pcall(field_spans, document)
  if not ok then
    return nil
  end
  local tries_text, headers_text =
    field_text(document, spans, 'tries') or 'null', field_text(document, spans, 'hdrs') or 'null'
  local count = tries_text == 'null' and 0 or tonumber(tries_text)
  headers_text = headers_text == 'null' and '{}' or headers_text
  if count and math.abs(count) < 2147483647 and byte(headers_text) == 123 and pcall(cjson.decode, headers_text) then
    return {
      document = document,
      spans = spans,
      tries = count,
      headers = headers_text,
      reserved = field_text(document, spans, 'reserved') == 'true',
    }
  end
end

-- Return the document again, due at `due` and without keuss' mark `reserved`. keuss commits a
-- marked document, no matter which client holds it.
local function format_document(parts, due)
  local tries, head, before = format('%d', parts.tries), parts.head, parts.before
  if head and parts.tries == before.tries and parts.headers == before.headers and due == before.due then
    return parts.document -- a long one is not copied
  end
  if head then
    head = sub(parts.document, 1, head)
    return head .. ',"tries":' .. tries .. ',"hdrs":' .. parts.headers .. ',"mature":' .. due .. parts.tail
  end
  local values = { tries = tries, hdrs = parts.headers, mature = due, reserved = parts.reserved and 'false' or nil }
  return set_fields(parts.document, parts.spans, values)
end

-- Return whether keuss has marked a document as reserved.
local function is_reserved_by_keuss(document)
  if document and find(document, 'reserved":true', 1, true) then
    local ok, spans = pcall(field_spans, document)
    return ok and field_text(document, spans, 'reserved') == 'true'
  end
  return false
end

-- --- reservations --------------------------------------------------------------------------------------------------

-- Return the ranges of `held` for a tag and for the tags below it: '0' is the character after '/'.
local function tag_ranges(tag)
  return { { '[' .. tag .. '\0', '(' .. tag .. '\1' }, { '[' .. tag .. '/', '(' .. tag .. '0' } }
end

-- Return the ends of a tag's lease: the current one, and the previous one during a renewal.
local function lease_ends(tag)
  return redis.call('ZSCORE', LEASES, tag), redis.call('ZSCORE', LEASES, tag .. '\0')
end

-- Return whether a run cannot contain an id: it is empty, has a NUL in it, or looks like a mark.
local function is_odd(id)
  return id == '' or find(id, '\0', 1, true) or byte(id) == PART_MARK
end

-- Return another id for an odd one. `is_taken(id)`: whether a message has it.
local function new_name(id, is_taken)
  local name = id == '' and '""' or string.gsub(string.gsub(id, '%z', '\\0'), '^\255', '\\xff')
  while is_taken(name) do
    name = name .. "'"
  end
  return name
end

-- Return where the tag of a run ends, and where its first id begins.
local function split_run(run)
  local first = find(run, '\0', 1, true)
  local has_parts = byte(run, first + 17) == PART_MARK and find(run, '^\255%d%d%d%d%z', first + 17)
  return first - 1, first + (has_parts and 23 or 17)
end

local marks = {} -- those that split_score() has written

-- Return how a run names a score (ms with parts): its due time (ms), and a mark of the parts, if any.
local function split_score(score)
  score = max(0, score)
  local ms = floor(score)
  local part = floor((score - ms) * PARTS)
  if part > 0 then
    marks[part] = marks[part] or format('\255%04d', part)
  end
  return ms, marks[part]
end

-- Return what a run of messages that are due then (ms) begins with.
local function run_head(tag, ms)
  return tag .. '\0' .. format('%015d', ms) .. '\0'
end

-- Return a mark, or none, and an id as the end of a run of one message.
local function marked(mark, id)
  return mark and mark .. '\0' .. id or id
end

-- Return an empty list of messages, with the runs of `source`, if given. Its fields:
-- * Of each message: `ids`, and `at`, the number of its group. A group is the messages of a run that
--   have the same score.
-- * Of each group: in `starts` all that is before the id in a run of one of them, and in `tags`
--   their tag. `run_of` has the number of its run.
-- * Of each run: its text in `runs`, and its due time in `dues` once due_of() has parsed it.
local function new_messages(source)
  local messages = source or { runs = {}, dues = {}, run_of = {}, starts = {}, tags = {} }
  return {
    runs = messages.runs, dues = messages.dues, run_of = messages.run_of,
    starts = messages.starts, tags = messages.tags, ids = {}, at = {},
  }
end

-- Add the messages of a run.
local function add_run(messages, run)
  local tag_end, first = split_run(run)
  local ids, at, starts, tags, run_of = messages.ids, messages.at, messages.starts, messages.tags, messages.run_of
  local n, r, number, tag = #ids, #starts + 1, #messages.runs + 1, sub(run, 1, tag_end)
  messages.runs[number] = run
  starts[r], tags[r], run_of[r] = sub(run, 1, first - 1), tag, number
  local head = find(run, '\0\255', first, true) and sub(run, 1, tag_end + 17) -- it has several groups
  for id in gmatch(sub(run, first), '[^%z]+') do
    if head and byte(id) == PART_MARK then
      r = r + 1
      starts[r], tags[r], run_of[r] = head .. id .. '\0', tag, number
    else
      n = n + 1
      ids[n], at[n] = id, r
    end
  end
end

-- Return when message i is due (ms), as text.
local function due_of(messages, i)
  local r = messages.at[i]
  local number = messages.run_of[r]
  local due = messages.dues[number]
  if not due then
    local tag_end = #messages.tags[r]
    due = digits(tonumber(sub(messages.starts[r], tag_end + 2, tag_end + 16)))
    messages.dues[number] = due
  end
  return due
end

-- Return the score of message i in the index while it is free, as a number or as text.
local function score_of(messages, i)
  local r = messages.at[i]
  local part = tonumber(sub(messages.starts[r], #messages.tags[r] + 19, -2))
  return part and due_of(messages, i) + part / PARTS or due_of(messages, i)
end

-- Return message i as a run of one message.
local function single_run(messages, i)
  return messages.starts[messages.at[i]] .. messages.ids[i]
end

-- Copy message i to a list that has the same runs.
local function copy_message(others, messages, i)
  local n = #others.ids + 1
  others.ids[n], others.at[n] = messages.ids[i], messages.at[i]
end

-- Return the messages from number `first` on.
local function messages_from(messages, first)
  local rest = new_messages(messages)
  for i = first, #messages.ids do
    copy_message(rest, messages, i)
  end
  return rest
end

-- Return messages as runs, the text of each. They must be in the order of their runs.
local function as_runs(messages)
  local found, texts, previous, i = {}, {}, nil, 1
  while i <= #messages.ids do
    local r, last = messages.at[i], i
    while messages.at[last + 1] == r do
      last = last + 1
    end
    local start = messages.starts[r]
    if messages.run_of[r] == previous then
      start = sub(start, #messages.tags[r] + 18) -- only the mark of its parts
    else
      found[#found + 1] = previous and concat(texts, '\0') or nil
      texts, previous = {}, messages.run_of[r]
    end
    texts[#texts + 1] = start .. concat(messages.ids, '\0', i, last)
    i = last + 1
  end
  found[#found + 1] = previous and concat(texts, '\0') or nil
  return found
end

-- Add the next runs of a range until there are `limit` messages; the last run may exceed it.
-- Returns whether the range has no more.
local function scan_runs(messages, low, high, limit)
  while #messages.ids < limit do
    local step = math.ceil((limit - #messages.ids) / RUN)
    local runs = redis.call('ZRANGEBYLEX', HELD, low, high, 'LIMIT', 0, step)
    for _, run in ipairs(runs) do
      add_run(messages, run)
    end
    if #runs < step then
      return true
    end
    low = '(' .. runs[#runs]
  end
  return false
end

-- Return about `limit` messages of this tag, and whether it has no more. Tags below it do not
-- count. `last`: the message after which to begin, as a run of one message; '' begins at the first.
local function read_held(tag, last, limit)
  local messages = new_messages()
  local all = scan_runs(messages, '[' .. (last == '' and tag .. '\0' or last .. '\1'), '(' .. tag .. '\1', limit)
  return messages, all
end

-- Return the ids in the index from `head` to `tail`, the lease end that they share, and the rank of
-- the first. Return nil for more than `limit` records, or if the tag's lease does not end then. The
-- index is sorted by score, so two scores are enough to know all.
local function find_contiguous(tag, head, tail, limit)
  local first, last = redis.call('ZRANK', INDEX, head), redis.call('ZRANK', INDEX, tail)
  if not (first and last and last >= first and last - first < limit) then
    return nil
  end
  local lease_end = redis.call('ZSCORE', INDEX, head)
  local current, leaving = lease_ends(tag)
  if lease_end ~= redis.call('ZSCORE', INDEX, tail) or not (lease_end == current or lease_end == leaving) then
    return nil
  end
  return redis.call('ZRANGE', INDEX, first, last), lease_end, first
end

-- Return the ids of several groups, which do not grow, if all these messages are still held; nil if not.
-- `text`: what follows the start of a run.
local function find_whole_groups(tag, text)
  local ids, n = {}, 0
  for id in gmatch(text, '[^%z]+') do
    if byte(id) ~= PART_MARK then
      n = n + 1
      ids[n] = id
    end
  end
  local current, leaving = lease_ends(tag)
  for _, score in ipairs(query_many('ZMSCORE', INDEX, ids)) do
    if not score or (score ~= current and score ~= leaving) then
      return nil
    end
  end
  return ids
end

-- Return the ids of a run, and the rank of the first. Return nil unless all its messages are still held,
-- and contiguous in the index. It returns nil for short runs too: check_held() checks many of them
-- together.
local function find_whole_run(run)
  local tag_end, first = split_run(run)
  local stop, text = find(run, '\0', first, true), sub(run, first)
  if not stop or #text < 2 * RUN then
    return nil
  elseif find(text, '\0\255', 1, true) then
    return find_whole_groups(sub(run, 1, tag_end), text)
  end
  local head, tail = sub(run, first, stop - 1), sub(run, 1 - find(string.reverse(run), '\0', 1, true))
  local ids, _, rank = find_contiguous(sub(run, 1, tag_end), head, tail, RUN)
  if ids and concat(ids, '\0') == text then
    return ids, rank
  end
end

-- Return the lease end of messages that one tag holds and that are contiguous in the index, and the
-- rank of the first. Return nil for others.
local function shared_lease_end(messages)
  local ids, tags, n = messages.ids, messages.tags, #messages.ids
  if n < 2 or tags[1] == '' then
    return nil
  end
  for _, tag in ipairs(tags) do
    if tag ~= tags[1] then
      return nil
    end
  end
  local found, lease_end, rank = find_contiguous(tags[1], ids[1], ids[n], n)
  if not found or #found ~= n then
    return nil
  end
  for i, id in ipairs(found) do
    if id ~= ids[i] then
      return nil
    end
  end
  return lease_end, rank
end

-- Split messages into those that are still held and those that are lost, and return both lists. The
-- lease end of each held message is in `ends`, or one for all in `lease_end`. In the second case,
-- `rank` is the rank of the first message in the index.
-- A run without a tag stands for a message that was free, with `due` as its score in the index. It
-- counts as held while it still has this score and keuss does not hold it.
local function check_held(messages)
  local lease_end, rank = shared_lease_end(messages)
  if lease_end then
    messages.lease_end, messages.rank = lease_end, rank
    return messages, new_messages(messages)
  end
  local now, tag, first, second = now_ms(), nil, nil, nil
  local kept, lost, n = new_messages(messages), new_messages(messages), 0
  local ids, at = messages.ids, messages.at
  kept.ends = {}
  for i, score in ipairs(query_many('ZMSCORE', INDEX, ids)) do
    local r, holds = at[i], nil
    if messages.tags[r] == '' then
      local due = due_of(messages, i)
      holds = score and digits(floor(tonumber(score))) == due
      holds = holds and not (tonumber(due) > now and is_reserved_by_keuss(redis.call('HGET', HASH, ids[i])))
    else
      if messages.tags[r] ~= tag then
        tag = messages.tags[r]
        first, second = lease_ends(tag)
      end
      holds = score and (score == first or score == second)
    end
    if holds then
      n = n + 1
      kept.ids[n], kept.at[n], kept.ends[n] = ids[i], r, score
    else
      copy_message(lost, messages, i)
    end
  end
  return kept, lost
end

-- Return the number of the first message of a run that comes after another one, which is a run of one
-- message.
local function first_after(messages, last)
  local _, first = split_run(last)
  local start, id = sub(last, 1, first - 1), sub(last, first)
  for i, one in ipairs(messages.ids) do
    local own = messages.starts[messages.at[i]]
    if own == start and is_before(id, one) or own ~= start and is_before(start, own) then
      return i
    end
  end
  return #messages.ids + 1
end

-- Return the last run of this tag and due time that begins with this message, a run of one, or before it.
local function run_before(message)
  local tag_end = split_run(message)
  local bottom = '[' .. sub(message, 1, tag_end + 17)
  return redis.call('ZREVRANGEBYLEX', HELD, '(' .. message .. '\1', bottom, 'LIMIT', 0, 1)[1]
end

-- Return the messages of a run that come after one of them, which is given as a run of one.
local function rest_of_run(last)
  local messages, run = new_messages(), run_before(last)
  if run then
    add_run(messages, run)
  end
  return messages_from(messages, first_after(messages, last))
end

-- Replace a run by runs of one message.
local function split_into_singles(run)
  local messages, singles = new_messages(), {}
  add_run(messages, run)
  for i = 1, #messages.ids do
    singles[2 * i - 1], singles[2 * i] = 0, single_run(messages, i)
  end
  redis.call('ZREM', HELD, run)
  call_many('ZADD', HELD, singles)
end

-- Add a run to `held`, whose first and last message are `first` and `last`, each a run of one. If it
-- overlaps with other runs, split all of them into runs of one message.
local function add_to_held(run, first, last)
  local tag_end = split_run(run)
  local bottom, upper, overlaps = '[' .. sub(run, 1, tag_end + 17), '(' .. last .. '\1', false
  while true do
    local other = redis.call('ZREVRANGEBYLEX', HELD, upper, bottom, 'LIMIT', 0, 1)[1]
    local existing = new_messages()
    if other then
      add_run(existing, other)
    end
    if not other or is_before(single_run(existing, #existing.ids), first) then
      break
    end
    overlaps, upper = true, '(' .. other
    if #existing.ids > 1 then
      split_into_singles(other)
    end
  end
  redis.call('ZADD', HELD, 0, run)
  if overlaps and run ~= first then
    split_into_singles(run)
  end
end

-- Return the message of a run that has this id, as a run of one; nil if none has it. `start`: all
-- before the id in the wanted run; without a mark, the parts of its score may be any.
local function find_in_run(run, start, id)
  if not find(run .. '\0', '\0' .. id .. '\0', 1, true) then
    return nil
  end
  local messages = new_messages()
  add_run(messages, run)
  for i, one in ipairs(messages.ids) do
    if one == id and (byte(start, -6) ~= PART_MARK or messages.starts[messages.at[i]] == start) then
      return single_run(messages, i)
    end
  end
end

-- Return a run of this one message, nil if there is none. Split a longer run that contains it. A
-- caller may not know the parts of its score: then a run with any number of them is found.
local function isolate_message(wanted)
  if redis.call('ZSCORE', HELD, wanted) then
    return wanted
  end
  local _, first = split_run(wanted)
  local start, id = sub(wanted, 1, first - 1), sub(wanted, first)
  local run = run_before(wanted)
  local found = run and find_in_run(run, start, id)
  local low = byte(start, -6) ~= PART_MARK and '[' .. start
  while low and not found do
    local runs = redis.call('ZRANGEBYLEX', HELD, low, '(' .. start .. '\255\255', 'LIMIT', 0, 10)
    low = #runs == 10 and '(' .. runs[10]
    for _, one in ipairs(runs) do
      if not found then
        run, found = one, find_in_run(one, start, id)
      end
    end
  end
  if found and found ~= run then
    split_into_singles(run)
  end
  return found
end

-- Return the messages that a call is about: those of the runs in ARGV, from `first` on. Without
-- such runs, return the next messages of the tag and of the tags below it, and whether there are
-- more.
local function select_messages(tag, first)
  local messages = new_messages()
  if ARGV[first] then
    local named = { unpack(ARGV, first) }
    local present = query_many('ZMSCORE', HELD, named)
    for i, run in ipairs(named) do
      local found = (present[i] or byte(run) == 0) and run or isolate_message(run)
      if found then
        add_run(messages, found)
      end
    end
    return messages, false
  end
  for _, range in ipairs(tag_ranges(tag)) do
    if not scan_runs(messages, range[1], range[2], CHUNK) then
      return messages, true
    end
  end
  return messages, false
end

-- Remove the leases of these tags, if they hold no messages.
local function remove_empty_leases(tags)
  local previous
  for _, tag in ipairs(tags) do
    if tag ~= previous then
      previous = tag
      if #redis.call('ZRANGEBYLEX', HELD, '[' .. tag .. '\0', '(' .. tag .. '\1', 'LIMIT', 0, 1) == 0 then
        redis.call('ZREM', LEASES, tag, tag .. '\0')
      end
    end
  end
end

-- Remove messages from `held`, except for `remaining`, which are some of them. Remove the lease of
-- a tag that then holds nothing.
local function remove_from_held(messages, remaining)
  if remaining and #remaining.ids == #messages.ids then
    return
  end
  local new_runs, old_runs, present, unchanged = {}, {}, {}, {}
  for _, run in ipairs(messages.runs) do
    present[run] = true
  end
  for _, run in ipairs(remaining and as_runs(remaining) or {}) do
    if present[run] then
      unchanged[run] = true
    else
      new_runs[#new_runs + 1], new_runs[#new_runs + 2] = 0, run
    end
  end
  for _, run in ipairs(messages.runs) do
    if not unchanged[run] then
      old_runs[#old_runs + 1] = run
    end
  end
  call_many('ZREM', HELD, old_runs)
  call_many('ZADD', HELD, new_runs)
  remove_empty_leases(messages.tags)
end

-- Make held messages free and add `failed` to their tries. They are due at `due`, or if it is nil,
-- when they were due before. Return how many of them were changed, since BYTES limits it. They stay
-- in `held`.
local function make_free(kept, due, failed)
  local found = read_documents(HASH, kept.ids)
  local index, hash = {}, {}
  local place = due and found[1] ~= nil and next_score(INDEX, tonumber(due), kept.ids[1])
  local ids, at, group, score, moment, n = kept.ids, kept.at, nil, nil, due, 0
  for i, document in ipairs(found) do
    local id = ids[i]
    if at[i] ~= group or (place and byte(ids[i - 1]) == BUCKET_MARK) then -- else their ids have the order
      place = place and group and score_after(place, ids[i - 1], id) or place
      group, score, moment = at[i], place and score_text(place) or score_of(kept, i), due or due_of(kept, i)
    end
    index[2 * i - 1], index[2 * i] = score, id
    local parts = document and parse_document(document)
    if parts then
      parts.tries = parts.tries + failed
      hash[n + 1], hash[n + 2] = id, format_document(parts, moment)
      n = n + 2
    end
  end
  call_many('ZADD', INDEX, index)
  call_many('HSET', HASH, hash)
  return #found
end

-- Add messages to the history for `history` ms: those that have a document in `texts`. Also remove
-- up to CHUNK expired entries.
local function write_history(messages, texts, history, consumer, outcome)
  local now, entries, expiries, n = now_ms(), {}, {}, 0
  local expiry, head = digits(now + history), '{"processed":' .. digits(now) .. ',"mature":'
  local middle = ',"consumer":"' .. consumer .. '","outcome":"' .. outcome .. '","message":'
  for i, id in ipairs(messages.ids) do
    if texts[i] then
      entries[n + 1], entries[n + 2] = id, head .. due_of(messages, i) .. middle .. texts[i] .. '}'
      expiries[n + 1], expiries[n + 2] = expiry, id
      n = n + 2
    end
  end
  call_many('HSET', HISTORY, entries)
  call_many('ZADD', PROCESSED, expiries)
  local old = redis.call('ZRANGEBYSCORE', PROCESSED, '-inf', digits(now), 'LIMIT', 0, CHUNK)
  call_many('ZREM', PROCESSED, old)
  call_many('HDEL', HISTORY, old)
  local last = redis.call('ZREVRANGE', PROCESSED, 0, 0, 'WITHSCORES')[2]
  if last then
    redis.call('PEXPIREAT', HISTORY, last)
    redis.call('PEXPIREAT', PROCESSED, last)
  end
end

-- Free the messages of expired leases and add one to their tries, unless they were reserved ahead.
-- Return false if CHUNK ended the sweep early. A lease under renewal has two ends, and each is swept separately.
local function sweep_expired_leases(now)
  local budget = CHUNK
  while true do
    local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'WITHSCORES', 'LIMIT', 0, 1)
    if #expired == 0 then
      return true
    elseif budget <= 0 then
      return false
    end
    allow_when_full()
    local tag, last, all = string.match(expired[1], '^[^%z]*'), '', false
    while not all do
      local found
      found, all = read_held(tag, last, CHUNK)
      if #found.ids > 0 then
        last = single_run(found, #found.ids)
        local kept, lost = check_held(found)
        local to_free = new_messages(found)
        for i = 1, #kept.ids do
          if (kept.lease_end or kept.ends[i]) == expired[2] then
            copy_message(to_free, kept, i)
          end
        end
        local done = make_free(to_free, nil, find(tag, '/unseen$') and 0 or 1)
        if lists then
          lists.on_released(first_items(to_free.ids, done), true)
        end
        local remaining, n = new_messages(found), 0
        for i = 1, #kept.ids do
          local is_expired = (kept.lease_end or kept.ends[i]) == expired[2]
          n = n + (is_expired and 1 or 0)
          if not is_expired or n > done then
            copy_message(remaining, kept, i)
          end
        end
        remove_from_held(found, remaining)
        budget = budget - done - #lost.ids
        if done < #to_free.ids or (budget <= 0 and not all) then
          return false
        end
      end
    end
    redis.call('ZREM', LEASES, expired[1])
    budget = budget - LEASE_COST
  end
end
