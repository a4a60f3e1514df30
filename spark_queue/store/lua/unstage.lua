-- Removes the chunk KEYS[8]; gives whether it had rows.

local rows = redis.call('LLEN', KEYS[8])
finish(KEYS[8])
return rows > 1 and 1 or 0
