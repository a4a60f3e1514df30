-- Count the messages that a tag holds and renew its lease, CHUNK messages at a time.
-- ARGV: tag, lease (ms; '' never ends; 'as it is' only counts), and from the answer of the last
-- call, '' at first: cursor, target, resumed.
-- Return {messages of this call, cursor ('' at the end), target, resumed: 'yes' to begin again}.
--
-- Between two calls, some messages have the new end as their score and the others the old one.
-- `leases` has both, and the tag holds messages with either. So a commit between two calls misses
-- nothing. If the renewal stops there, each end is swept when it has passed. A tag has at most two
-- ends: a renewal that was cut short is completed before the next one begins.

local tag, lease, cursor, target, resumed = unpack(ARGV, 1, 5)
local current, leaving = lease_ends(tag)
local only_count = lease == 'as it is'

if not (current or leaving) then
  return { 0, '', '', 'no' }
elseif not only_count and target == '' then
  allow_when_full()
  if current and leaving then
    target, resumed = current, 'yes'
  else
    leaving = current or leaving
    target, resumed = new_lease_end(lease), 'no'
    redis.call('ZADD', LEASES, target, tag, leaving, tag .. '\0')
  end
elseif not only_count and target ~= current then
  return { 0, '', '', 'yes' } -- another renewal has overtaken this one: begin again
end

local found, all = read_held(tag, cursor, CHUNK)
local kept = check_held(found)
if not only_count then
  local index = {}
  for i, id in ipairs(kept.ids) do
    index[2 * i - 1], index[2 * i] = target, id
  end
  allow_when_full()
  call_many('ZADD', INDEX, index)
  remove_from_held(found, kept) -- a lost message must not be held again if its score becomes the new end
end
if not all then
  return { count_messages(kept.ids), single_run(found, #found.ids), target, resumed }
end
if not only_count then
  redis.call('ZREM', LEASES, tag .. '\0')
end
return { count_messages(kept.ids), '', target, resumed }
