-- Makes the chunk KEYS[8] messages of the queue; gives the number of those whose ids it did not hold yet.
-- ARGV: as the second one of push.lua.

local rows = redis.call('GET', KEYS[8])
local published = rows and rows ~= '' and push(cmsgpack.unpack(rows), ARGV[1] == 'front') or 0
finish(KEYS[8])
return published
