-- Transfer the given messages to another tag, under that tag's lease, or a new one if it has none.
-- ARGV: target tag, lease (ms; '' never ends), runs of one message… Return {messages transferred,
-- 0}.

local to = ARGV[1]
allow_when_full()
local found = select_messages('', 3)
local kept = check_held(found)
remove_from_held(found)
if #kept.ids > 0 then
  local lease_end = redis.call('ZSCORE', LEASES, to)
  if not lease_end then
    lease_end = new_lease_end(ARGV[2])
    redis.call('ZADD', LEASES, lease_end, to)
  end
  local index = {}
  for i, id in ipairs(kept.ids) do
    local group = kept.at[i]
    local run = to .. sub(kept.starts[group], #kept.tags[group] + 1) .. id
    add_to_held(run, run, run)
    index[2 * i - 1], index[2 * i] = lease_end, id
  end
  call_many('ZADD', INDEX, index)
end
return { count_messages(kept.ids), 0 }
