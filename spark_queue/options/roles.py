"""Find what a write does: its role."""

from __future__ import annotations

from collections.abc import Mapping

from spark_queue.errors import OptionError
from spark_queue.options.masking import masked_repr
from spark_queue.options.parsers import one_of
from spark_queue.options.values import Role


def role_of_write(raw: Mapping[str, str]) -> Role:
    """Return whether a write pushes or settles, by its option `operation`.

    Raises `OptionError` if the option has another value.
    """
    for key, text in raw.items():
        if key.lower() == "operation":
            try:
                return "settle" if one_of("push", "settle")(text) == "settle" else "push"
            except ValueError as error:
                raise OptionError(
                    f"option 'operation' is {masked_repr(text)} but must be {error}", option=key
                ) from None
    return "push"
