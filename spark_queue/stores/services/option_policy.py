"""The policy of a queue that Spark's options, or those of a namespace of the server, ask for."""

from __future__ import annotations

from spark_queue.options.parts import DeadLetters, Outcomes
from spark_queue.options.push import PushOptions
from spark_queue.options.settle import SettleOptions
from spark_queue.options.stream import StreamOptions
from spark_queue.stores.policy import NOT_GIVEN, QueuePolicy
from spark_queue.stores.services.retry import exponential

#: The longest delay of a message that fails alone (ms).
MAX_DELAY_MS = 3_600_000


def stream_policy(options: StreamOptions) -> QueuePolicy:
    """Return the policy of a streaming read. Options that are not set are not given."""
    retry = exponential(options.retry_delay, MAX_DELAY_MS)
    return _settling(options.outcomes, options.dead_letters).replace(lease=options.reserve_timeout, retry=retry)


def settle_policy(options: SettleOptions) -> QueuePolicy:
    """Return the policy of a write that settles. Options that are not set are not given."""
    return _settling(options.outcomes, options.dead_letters)


def push_policy(options: PushOptions) -> QueuePolicy:
    """Return the policy of a write that pushes. Options that are not set are not given."""
    layout = options.record_layout or NOT_GIVEN
    return QueuePolicy(dead_letter_queue=options.dead_letters.dead_letter_queue or NOT_GIVEN, layout=layout)


def _settling(outcomes: Outcomes, dead_letters: DeadLetters) -> QueuePolicy:
    return QueuePolicy(
        max_tries=NOT_GIVEN if outcomes.max_tries is None else outcomes.max_tries,
        dead_letter_queue=dead_letters.dead_letter_queue or NOT_GIVEN,
        history=NOT_GIVEN if outcomes.history is None else outcomes.history,
    )
