-- Passes what the named members hold on to another tag, under the lease that this has, or else a new one.
-- ARGV: tag to pass to, lease (ms; '' never ends), members… Gives {messages passed on, 0}.

local to = ARGV[1]
drain()
local kept, lost = examine((selection('', 3)))
release(lost)
if #kept > 0 then
  local till = redis.call('ZSCORE', LEASES, to)
  if not till then
    till = end_of(ARGV[2])
    redis.call('ZADD', LEASES, till, to)
  end
  local held, index = {}, {}
  for i, member in ipairs(kept) do
    held[2 * i - 1], held[2 * i] = 0, to .. sub(member, (find(member, '\0', 1, true)))
    index[2 * i - 1], index[2 * i] = till, kept.ids[i]
  end
  release(kept)
  spread('ZADD', HELD, held)
  spread('ZADD', INDEX, index)
end
return { weigh(kept.ids), 0 }
