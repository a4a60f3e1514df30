-- Writes the chunk KEYS[7], unless it is there or is over. ARGV: as of push.lua.

if redis.call('EXISTS', KEYS[7]) == 0 then
  spread('RPUSH', KEYS[7], ARGV)
end
