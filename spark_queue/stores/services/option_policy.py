"""The policy of a queue that Spark's options, or those of a namespace of the server, ask for."""

from __future__ import annotations

from spark_queue.options.queue_options import QueueOptions
from spark_queue.stores.policy import NOT_GIVEN, QueuePolicy
from spark_queue.stores.services.retry import exponential

#: The longest delay of a message that fails alone (ms).
MAX_DELAY_MS = 3_600_000


def policy_of(options: QueueOptions) -> QueuePolicy:
    """Return the policy that options ask for. Options that are not set are not given."""
    return QueuePolicy(
        lease=options.reserve_timeout,
        max_tries=NOT_GIVEN if options.max_tries is None else options.max_tries,
        dead_letter_queue=options.dead_letter_queue or NOT_GIVEN,
        history=NOT_GIVEN if options.history is None else options.history,
        layout=options.record_layout or NOT_GIVEN,
        retry=exponential(options.retry_delay, MAX_DELAY_MS),
    )
