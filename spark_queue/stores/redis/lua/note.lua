-- Writes the note KEYS[1] where it has this version still; gives whether it does.
-- ARGV: value (JSON; '' removes the note), version (0: there is none yet)

local value, version = ARGV[1], tonumber(ARGV[2])
if (tonumber(redis.call('HGET', KEYS[1], 'version')) or 0) ~= version then
  return 0
end
redis.call('HDEL', KEYS[1], '') -- as drain(): a note is small, and consumers write some
if value == '' then
  redis.call('DEL', KEYS[1])
else
  redis.call('HSET', KEYS[1], 'value', value, 'version', digits(version + 1), 'written', digits(clock()))
end
return 1
