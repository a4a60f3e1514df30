-- Writes the chunk KEYS[8], unless it is there or is over. ARGV: as of push.lua.

if redis.call('EXISTS', KEYS[8]) == 0 then
  spread('RPUSH', KEYS[8], ARGV)
end
