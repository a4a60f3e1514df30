-- What layouts with lists have in common. What is ready waits in their list, the next one last, from which their
-- programs take it. The index has what is reserved or scheduled and its documents lie in the hash, as everywhere: under
-- keys of ours, since these layouts have no such thing. So a message is in the list or in the index, and every script
-- moves it from one to the other in one step.
--
-- What is due but still in the index (a scheduled message, what a crash in the middle of a move or a purge has left)
-- goes to the list when one of ours next reserves or pushes there; what a lease that ended held, when one reserves.
--
-- A layout gives the steps of `layout`, about a queue q = {index, hash, list, …}, keys all:
--   own, other   q of this script's queue, and of the one that move.lua moves to
--   known(q, id)                          whether the queue has a message of this id that is not in the index
--   put(q, ids, documents, front, new)    into the list, in this order; `new`: the queue does not hold them yet
--   keep(q, id, document)                 what there is to do for a scheduled one besides
--   alive(id)                             whether the message of an id in the index is still there
--   read(element, latest, now, n, here)   id, document and due of the n-th element taken from the list, other than those
--                                         that are `here` and in the index; nil for what is no message
--   taken(ids), returned(ids)             these were reserved; are no longer
--   forget(ids)                           what else there is to remove of messages
--   idle()                                list and index are empty
--   due(element, now)                     when an element of the list is due
--   others(ours, now)                     how many messages others hold, beside so many of ours
local layout = {}

lists = {}

local function count() -- how many are in the list
  return redis.call('LLEN', layout.own.list)
end

-- Moves what nobody holds from the index to the list: those of these ids that are there still.
local function put_back(ids, found, front)
  local there, documents, gone = {}, {}, {}
  for i, document in ipairs(found) do
    gone[i] = ids[i]
    if document and layout.alive(ids[i]) then
      there[#there + 1], documents[#documents + 1] = ids[i], document
    end
  end
  spread('ZREM', INDEX, gone)
  spread('HDEL', HASH, gone)
  layout.put(layout.own, there, documents, front, false)
end

-- Brings to the list what is due in the index, up to CHUNK of it; gives whether more is. What a lease that ended held
-- is left to its holder, until the lease is swept.
local function surface(front)
  local now = digits(clock())
  local due = redis.call('ZRANGEBYSCORE', INDEX, '-inf', now, 'WITHSCORES', 'LIMIT', 0, CHUNK)
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
  local found = documents(HASH, ids)
  put_back(ids, found, front)
  return #found > 0 and (#found < #ids or #due == 2 * CHUNK)
end

-- Makes rows messages: see push().
lists.enter = function(rows, q, front)
  q = q or layout.own
  local n, now = (#rows - 1) / 4, clock()
  local ids, seen = {}, {}
  for i = 1, n do
    ids[i] = rows[2 * i + 1]
  end
  local held = gather('ZMSCORE', q.index, ids)
  local ready, documents, index, hash, new = {}, {}, {}, {}, 0
  for i, id in ipairs(ids) do
    if not (held[i] or seen[id] or layout.known(q, id)) then
      local due, document = rows[2 * i], rows[2 * n + 2 * i + 1]
      seen[id], new = true, new + 1
      if tonumber(due) <= now then
        ready[#ready + 1], documents[#documents + 1] = id, document
      else
        index[#index + 1], index[#index + 2] = due, id
        hash[#hash + 1], hash[#hash + 2] = id, document
        layout.keep(q, id, document)
      end
    end
  end
  if q == layout.own then
    surface(false)
  end
  layout.put(q, ready, documents, front, true)
  spread('HSET', q.hash, hash)
  spread('ZADD', q.index, index)
  return new
end

-- The same for the queue that move.lua moves to.
lists.move = function(index, hash)
  local rows = { #index / 2 }
  for _, part in ipairs({ index, hash }) do
    for _, one in ipairs(part) do
      rows[#rows + 1] = one
    end
  end
  lists.enter(rows, layout.other)
end

-- What was reserved is so no longer: what of it is due goes to the list, in front or at the end.
lists.returned = function(ids, front)
  layout.returned(ids)
  local now, due = clock(), {}
  for i, score in ipairs(gather('ZMSCORE', INDEX, ids)) do
    if score and tonumber(score) <= now then
      due[#due + 1] = ids[i]
    end
  end
  put_back(due, gather('HMGET', HASH, due), front)
end

-- Takes up to `most` messages that were due by `latest` out of the list, the next ones first, and no more than about
-- BYTES of them; what is due later stays where it is. Gives ids, documents, dues, and whether there may be more.
-- `now` is that of the caller: a clock that has gone on since would make what is due now due after `latest`.
local function pull(most, latest, now)
  local list, bytes, seen, step = layout.own.list, 0, 0, 1
  local ids, found, dues, later, here, more = {}, {}, {}, {}, {}, true
  while #ids < most and bytes < BYTES and seen < CHUNK do
    step = min(step, most - #ids)
    local elements = redis.call('RPOP', list, step) or {}
    for _, element in ipairs(elements) do
      seen = seen + 1
      local id, document, due = layout.read(element, latest, now, seen, here)
      if id and due > latest then
        later[#later + 1] = element
      elseif id then
        here[id] = true
        ids[#ids + 1], found[#found + 1], dues[#dues + 1] = id, document, due
      end
      bytes = bytes + #(document or '')
    end
    if #elements < step then
      more = false
      break
    end
    step = max(1, min(500, floor((BYTES - bytes) * seen / (bytes + 1)))) -- as many as will fit if they are alike
  end
  local back = {}
  for i = #later, 1, -1 do
    back[#back + 1] = later[i]
  end
  spread('RPUSH', list, back)
  return ids, found, dues, more and #ids > 0
end

-- The next messages for a tag, whose documents are brought to the hash: ids, when each is due, and whether there may be
-- more. A tag holds messages in the order of (due, id), and these shall have that of the list: where it is another, due
-- is a little later.
lists.claim = function(tag, most, latest, now)
  surface(true)
  local ids, found, dues, more = pull(most, latest, now)
  local last_run = redis.call('ZREVRANGEBYLEX', HELD, '(' .. tag .. '\1', '[' .. tag .. '\0', 'LIMIT', 0, 1)[1]
  local last, moment = nil, 0
  if last_run then
    local held = some()
    read(held, last_run)
    last, moment = held.ids[#held.ids], tonumber(due_of(held, #held.ids))
  end
  local hash = {}
  for i, id in ipairs(ids) do
    if last and dues[i] <= moment then
      dues[i] = before(last, id) and moment or moment + 1
    end
    last, moment = id, dues[i]
    dues[i] = digits(moment)
    hash[2 * i - 1], hash[2 * i] = id, found[i]
  end
  spread('HSET', HASH, hash)
  layout.taken(ids)
  if #ids == 0 and redis.call('EXISTS', layout.own.list, INDEX) == 0 then
    layout.idle()
  end
  return ids, dues, more
end

-- Brings up to CHUNK messages of the list to the index, where they can be chosen from; gives whether more may be there.
lists.fill = function()
  local ids, found, dues = pull(CHUNK, NEVER, clock())
  local index, hash = {}, {}
  for i, id in ipairs(ids) do
    index[2 * i - 1], index[2 * i] = digits(dues[i]), id
    hash[2 * i - 1], hash[2 * i] = id, found[i]
  end
  spread('HSET', HASH, hash)
  spread('ZADD', INDEX, index)
  return count() > 0
end

lists.surface = surface

lists.forget = function(ids)
  layout.forget(ids)
end

lists.count = count

-- How many messages others hold, where `ours` are held by ours, and when the first of the list is due (nil where it is
-- empty).
lists.look = function(ours)
  local now = clock()
  local element = redis.call('LINDEX', layout.own.list, -1)
  return layout.others(ours, now), element and digits(layout.due(element, now))
end
