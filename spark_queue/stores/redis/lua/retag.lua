-- Passes what the named messages hold on to another tag, under the lease that this has, or else a new one.
-- ARGV: tag to pass to, lease (ms; '' never ends), messages, each as a run of its own… Gives {messages passed on, 0}.

local to = ARGV[1]
drain()
local found = selection('', 3)
local kept = examine(found)
release(found)
if #kept.ids > 0 then
  local till = redis.call('ZSCORE', LEASES, to)
  if not till then
    till = end_of(ARGV[2])
    redis.call('ZADD', LEASES, till, to)
  end
  local index = {}
  for i, id in ipairs(kept.ids) do
    hold(to .. sub(kept.starts[kept.at[i]], -17), kept.ids, i, i)
    index[2 * i - 1], index[2 * i] = till, id
  end
  spread('ZADD', INDEX, index)
end
return { weigh(kept.ids), 0 }
