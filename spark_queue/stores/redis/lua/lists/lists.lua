-- Steps that the layouts with lists share. Ready messages are in the layout's own list, the next
-- one last, from which other programs take them too. Reserved and scheduled messages are in the
-- index, and their documents in the hash, as in other layouts; these keys are ours. So a message is
-- in the list or in the index, and each script moves it in one step.
--
-- Some due messages are in the index. These are scheduled messages, and those that a crash in the
-- middle of a move or a purge has left there. They go to the list when one of our clients next
-- reserves or pushes. Messages of an expired lease go there when one reserves.
--
-- A layout defines these fields of `layout`. A queue `q` is {index, hash, list, …}, all of them
-- keys.
-- * `own`, `target`: the queue of the script, and the queue that move.lua moves to.
-- * `use(last)`: make `own` the queue whose last key is KEYS[last], and whose others are in INDEX to
--   BUCKETS.
-- * `has_id(q, id)`: return whether the queue has a message of this id outside of the index.
-- * `add_to_list(q, ids, documents, front, new)`: add messages to the list, in this order. `new`:
--   the queue does not hold them yet.
-- * `write_message(q, id, document)`: write what the layout needs for a scheduled message besides
--   the index and the hash.
-- * `exists(id)`: return whether the message of an id in the index still exists.
-- * `read_element(element, latest, now, n, seen_ids)`: return id, document and due time of the n-th
--   element taken from the list. The id is neither in `seen_ids` nor in the index. Return nil if
--   the element is not such a message.
-- * `on_reserved(ids)`, `on_released(ids)`, `on_removed(ids)`: do what the layout needs after
--   messages were reserved, released or removed.
-- * `on_empty()`: clean up when the list and the index are empty.
-- * `element_due(element, now)`: return when an element of the list is due (ms).
-- * `count_others(ours, now)`: return how many messages other programs hold, besides the number of
--   `ours`.
local layout = {}

lists = {}

local function list_length()
  return redis.call('LLEN', layout.own.list)
end

-- Move those of these messages from the index to the list that still exist. No tag may hold them.
local function move_to_list(ids, found, front)
  local there, documents, gone = {}, {}, {}
  for i, document in ipairs(found) do
    gone[i] = ids[i]
    if document and layout.exists(ids[i]) then
      there[#there + 1], documents[#documents + 1] = ids[i], document
    end
  end
  call_many('ZREM', INDEX, gone)
  call_many('HDEL', HASH, gone)
  layout.add_to_list(layout.own, there, documents, front, false)
end

-- Move due messages from the index to the list, up to CHUNK. Return whether there are more.
-- Messages of an expired lease stay with their tag until the lease is swept.
local function deliver_due(front)
  local now = digits(now_ms())
  local due = redis.call('ZRANGEBYSCORE', INDEX, '-inf', due_by(now_ms()), 'WITHSCORES', 'LIMIT', 0, CHUNK)
  if #due == 0 then
    return false
  end
  local ended, ids = {}, {}
  for i, score in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'WITHSCORES')) do
    ended[score] = i % 2 == 0 or nil
  end
  for i = 1, #due, 2 do
    if not ended[due[i + 1]] then
      ids[#ids + 1] = due[i]
    end
  end
  local found = read_documents(HASH, ids)
  move_to_list(ids, found, front)
  return #found > 0 and (#found < #ids or #due == 2 * CHUNK)
end

-- Push rows to the queue `q`, by default that of the script: see push().
lists.push = function(rows, q, front)
  q = q or layout.own
  local n, now = (#rows - 1) / 4, now_ms()
  local ids, seen = {}, {}
  for i = 1, n do
    ids[i] = rows[2 * i + 1]
  end
  local in_index = query_many('ZMSCORE', q.index, ids)
  local ready, documents, index, hash, new = {}, {}, {}, {}, 0
  for i, id in ipairs(ids) do
    if not (in_index[i] or seen[id] or layout.has_id(q, id)) then
      local due, document = rows[2 * i], rows[2 * n + 2 * i + 1]
      seen[id], new = true, new + 1
      if floor(tonumber(due)) <= now then
        ready[#ready + 1], documents[#documents + 1] = id, document
      else
        index[#index + 1], index[#index + 2] = due, id
        hash[#hash + 1], hash[#hash + 2] = id, document
        layout.write_message(q, id, document)
      end
    end
  end
  if q == layout.own then
    deliver_due(false)
  end
  layout.add_to_list(q, ready, documents, front, true)
  call_many('HSET', q.hash, hash)
  call_many('ZADD', q.index, index)
  return new
end

-- Push records to the queue that move.lua moves to.
lists.push_to_target = function(index, hash)
  local rows = { #index / 2 }
  for _, part in ipairs({ index, hash }) do
    for _, one in ipairs(part) do
      rows[#rows + 1] = one
    end
  end
  lists.push(rows, layout.target)
end

-- Complete the release of messages: move the due ones to the front or the end of the list.
lists.on_released = function(ids, front)
  layout.on_released(ids)
  local now, due = now_ms(), {}
  for i, score in ipairs(query_many('ZMSCORE', INDEX, ids)) do
    if score and floor(tonumber(score)) <= now then
      due[#due + 1] = ids[i]
    end
  end
  move_to_list(due, query_many('HMGET', HASH, due), front)
end

-- Take up to `limit` messages that were due by `latest` from the list, the next ones first, about
-- BYTES at most. Leave the others there. Return ids, documents, due times, and whether there may be
-- more. `now` is the caller's: by a later clock, messages due now would be due after `latest`.
-- `fits(id, bytes)`, if given: whether a message is taken; the first that is not ends the call, and
-- the last value returned is true.
local function pop_messages(limit, latest, now, fits)
  local list, bytes, seen, step = layout.own.list, 0, 0, 1
  local ids, found, dues, later, seen_ids, more, full = {}, {}, {}, {}, {}, true, false
  while #ids < limit and bytes < BYTES and seen < CHUNK do
    step = min(step, limit - #ids)
    local elements = redis.call('RPOP', list, step) or {}
    for _, element in ipairs(elements) do
      seen = seen + 1
      local id, document, due
      if not full then
        id, document, due = layout.read_element(element, latest, now, seen, seen_ids)
      end
      full = full or (id and due <= latest and fits and not fits(id, #document)) or false
      if full or (id and due > latest) then
        later[#later + 1] = element
      elseif id then
        seen_ids[id] = true
        ids[#ids + 1], found[#found + 1], dues[#dues + 1] = id, document, due
      end
      bytes = bytes + #(document or '')
    end
    if full or #elements < step then
      more = false
      break
    end
    step = max(1, min(500, floor((BYTES - bytes) * seen / (bytes + 1)))) -- as many as fit if they have the same size
  end
  local back = {}
  for i = #later, 1, -1 do
    back[#back + 1] = later[i]
  end
  call_many('RPUSH', list, back)
  return ids, found, dues, more and #ids > 0, full
end

-- Take the next messages of the list, and write their documents to the hash. Return ids, due times,
-- and whether there may be more.
lists.claim = function(limit, latest, now, fits)
  deliver_due(true)
  local ids, found, dues, more = pop_messages(limit, latest, now, fits)
  local hash = {}
  for i, id in ipairs(ids) do
    hash[2 * i - 1], hash[2 * i] = id, found[i]
  end
  call_many('HSET', HASH, hash)
  layout.on_reserved(ids)
  if #ids == 0 and redis.call('EXISTS', layout.own.list, INDEX) == 0 then
    layout.on_empty()
  end
  return ids, dues, more
end

-- Turn the due times of ids[first] to ids[last] into scores, for a tag that gets these messages. A tag
-- holds messages in the order of (score, id), and it must get them in the order of the list. So the
-- score of some is later: parts of a ms, or until one before it is due.
lists.order = function(tag, ids, dues, first, last)
  local last_run = redis.call('ZREVRANGEBYLEX', HELD, '(' .. tag .. '\1', '[' .. tag .. '\0', 'LIMIT', 0, 1)[1]
  local previous, moment = nil, 0
  if last_run then
    local held = new_messages()
    add_run(held, last_run)
    previous, moment = held.ids[#held.ids], tonumber(score_of(held, #held.ids))
  end
  for i = first, last do
    if previous and dues[i] <= moment then
      dues[i] = is_before(previous, ids[i]) and moment or moment + 1 / PARTS
    end
    previous, moment = ids[i], dues[i]
    dues[i] = score_text(moment)
  end
end

-- Move up to CHUNK messages from the list to the index, where scripts can select them. Those of the
-- same due time keep their order. Return whether there may be more.
lists.fill = function()
  local ids, found, dues = pop_messages(CHUNK, NEVER, now_ms())
  local index, hash, last_ids, last_scores = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    local due = tonumber(dues[i])
    local last, score = last_ids[due], last_scores[due]
    if not last then
      score = next_score(INDEX, due, id)
    elseif not is_before(last, id) then
      score = score + 1 / PARTS
    end
    last_ids[due], last_scores[due] = id, score
    index[2 * i - 1], index[2 * i] = score_text(score), id
    hash[2 * i - 1], hash[2 * i] = id, found[i]
  end
  call_many('HSET', HASH, hash)
  call_many('ZADD', INDEX, index)
  return list_length() > 0
end

lists.deliver_due = deliver_due

lists.on_removed = function(ids)
  layout.on_removed(ids)
end

lists.count = list_length

lists.use = function(last)
  layout.use(last)
end

-- Return how many messages other programs hold, besides the number of `ours`. Also return when the
-- first message of the list is due (nil if the list is empty).
lists.count_others = function(ours)
  local now = now_ms()
  local element = redis.call('LINDEX', layout.own.list, -1)
  return layout.count_others(ours, now), element and digits(layout.element_due(element, now))
end
