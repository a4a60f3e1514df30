-- Brings to the list what is due in the index, CHUNK messages at a time. Gives whether to call again.

drain()
return lists.surface(true) and 1 or 0
