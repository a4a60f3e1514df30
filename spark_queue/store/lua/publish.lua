-- Makes the chunk KEYS[8] messages of the queue; gives the number of those whose ids it did not hold yet.

local rows = redis.call('LRANGE', KEYS[8], 0, -1)
local published = #rows > 1 and push(rows) or 0
finish(KEYS[8])
return published
