"""Our own resources, `/v1/queues`: lists of messages in JSON, and receipts.

* `queues.py`: lists and sizes of queues, pause.
* `messages.py`: push, reserve, look.
* `outcomes.py`: commit, rollback, renew, dead letters.
* `fields.py`: JSON bodies.

No GET changes anything. Durations are texts with a unit, as in the options of Spark: `30s`.
"""
