-- Pushes messages whose ids the queue does not hold yet; gives their number.
-- ARGV: rows in MessagePack; of a layout with lists perhaps 'front', for before what is there.

return push(cmsgpack.unpack(ARGV[1]), ARGV[2] == 'front')
