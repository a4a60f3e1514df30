-- Return the bytes of documents, 0 for a missing one.
-- ARGV: their ids.

local found = {}
for i, id in ipairs(ARGV) do
  found[i] = redis.call('HSTRLEN', HASH, id)
end
return found
