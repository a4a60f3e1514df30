-- Make the rows of the chunk KEYS[8] messages of the queue. Return the number of new messages,
-- without ids that the queue holds already.
-- ARGV: as the second one of push.lua.

local rows = redis.call('GET', KEYS[8])
local published = rows and rows ~= '' and push(cmsgpack.unpack(rows), ARGV[1] == 'front') or 0
finish_chunk(KEYS[8])
return published
