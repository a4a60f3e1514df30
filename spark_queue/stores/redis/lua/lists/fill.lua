-- Move messages from the list to the index, CHUNK at a time. Return 1 to call again.

allow_when_full()
return lists.fill() and 1 or 0
