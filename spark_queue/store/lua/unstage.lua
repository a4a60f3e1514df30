-- Removes the chunk KEYS[7]; gives its rows.

local rows = floor(redis.call('LLEN', KEYS[7]) / 3)
finish(KEYS[7])
return rows
