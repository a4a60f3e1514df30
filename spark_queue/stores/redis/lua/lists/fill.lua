-- Brings the list to the index, CHUNK messages at a time. Gives whether to call again.

drain()
return lists.fill() and 1 or 0
