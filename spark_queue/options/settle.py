"""The options of a write that settles messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_queue.options.consistency import (
    check_database,
    check_dead_letters,
    check_no_record_layout,
    check_queue,
    move_layout,
)
from spark_queue.options.declaration import option_error, part
from spark_queue.options.inputs import QUEUE
from spark_queue.options.parts import (
    Content,
    Database,
    DeadLetters,
    JsonFormats,
    Outcomes,
    Writing,
    consumer_option,
    queue_option,
)
from spark_queue.options.values import Role


@dataclass(frozen=True, kw_only=True)
class SettleOptions:
    """The options of a write that settles the messages which a `consumer` holds of a queue."""

    database: Database = part(Database, without=("urls",))
    outcomes: Outcomes = part(Outcomes)
    dead_letters: DeadLetters = part(DeadLetters)
    content: Content = part(Content)
    formats: JsonFormats = part(JsonFormats)
    writing: Writing = part(Writing)
    queue: str = queue_option()
    consumer: str = consumer_option()

    @classmethod
    def resolve(cls, chosen: dict[str, Any], roles: tuple[Role, ...]) -> None:
        """Check options that need others. `roles`: for errors.

        Raises `OptionError` if an option is missing, or contradicts another one.
        """
        check_database(chosen)
        check_queue(chosen)
        if "consumer" not in chosen:
            raise option_error("consumer", "is missing: settle needs the consumer whose messages it settles")
        check_dead_letters(chosen)
        check_no_record_layout(chosen, roles)
        move_layout(chosen)

    def queues_in(self, ns: str) -> list[tuple[str, str]]:
        """Return the queues that the options name in one of the databases, each with its mode."""
        return [(one, QUEUE) for one in [self.queue, *self.dead_letters.named]]
