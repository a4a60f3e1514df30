-- Move due messages from the index to the list, CHUNK at a time. Return 1 to call again.

allow_when_full()
return lists.deliver_due(true) and 1 or 0
