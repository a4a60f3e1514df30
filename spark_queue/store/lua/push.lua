-- Pushes messages whose ids the queue does not hold yet; gives their number.
-- ARGV: rows in MessagePack.

return push(cmsgpack.unpack(ARGV[1]))
