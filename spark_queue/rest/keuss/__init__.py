"""The resources of keuss-server, `/q` and `/x`: a client that was written for it works unchanged.

* `queues.py`: lists and status of queues, pause, requests that wait.
* `messages.py`: push, pop, reserve, commit, rollback, remove.
* `payloads.py`: a message as body and headers.
* `kinds.py`: the names of keuss for the layouts of stores.
* `exchanges.py`: list, create, start, stop and delete exchanges.
* `exchange_status.py`: what they say of an exchange.

Answers and parameters are those of keuss-server 3. Parameters that it does not know are ignored, as
it does. Errors are problem documents here; there they are texts.
"""
