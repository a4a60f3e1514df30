-- Counts what a tag holds, and lets it be held longer, CHUNK messages at a time.
-- ARGV: tag, lease (ms; '' never ends; 'as it is' only counts), and as the last call gave them, '' at first: cursor,
-- target, resumed. Gives {messages of this call, cursor ('' at the end), target, resumed: 'yes' to begin again}.
--
-- Between two calls a part of the messages has the new end and the rest the old one. Both are then in `leases`, and
-- both prove the hold, so a commit in the middle misses nothing; if the renewal stops there, each end is swept in its
-- time. A tag has two ends at most: a renewal that was cut short is resumed and ended before the next begins.

local tag, lease, cursor, target, resumed = unpack(ARGV, 1, 5)
local current, leaving = ends(tag)
local counting = lease == 'as it is'

if not (current or leaving) then
  return { 0, '', '', 'no' }
elseif not counting and target == '' then
  drain()
  if current and leaving then
    target, resumed = current, 'yes'
  else
    leaving = current or leaving
    target, resumed = end_of(lease), 'no'
    redis.call('ZADD', LEASES, target, tag, leaving, tag .. '\0')
  end
elseif not counting and target ~= current then
  return { 0, '', '', 'yes' } -- another renewal has overtaken this one: begin again
end

local found, all = own(tag, cursor, CHUNK)
local kept = examine(found)
if not counting then
  local index = {}
  for i, id in ipairs(kept.ids) do
    index[2 * i - 1], index[2 * i] = target, id
  end
  drain()
  spread('ZADD', INDEX, index)
  release(found, kept) -- the new end must not prove a hold that is lost
end
if not all then
  return { weigh(kept.ids), single(found, #found.ids), target, resumed }
end
if not counting then
  redis.call('ZREM', LEASES, tag .. '\0')
end
return { weigh(kept.ids), '', target, resumed }
