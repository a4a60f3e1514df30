"""The table of all options in `docs/options.md`."""

from __future__ import annotations

import re
from dataclasses import fields

from spark_queue.options.consistency import option_name
from spark_queue.options.queue_options import QueueOptions


def table() -> str:
    """Return the options as a Markdown table, as `docs/options.md` shows it."""
    rows = ["| option | default | goes with | meaning |", "|---|---|---|---|"]
    for option in fields(QueueOptions):
        facts = option.metadata
        default = facts["default"]
        if re.fullmatch(r"[\w-]+", default) and default not in ("required", "none"):
            default = f"`{default}`"
        rows.append(f"| `{option_name(option.name)}` | {default} | {', '.join(facts['roles'])} | {facts['doc']} |")
    return "\n".join(rows)
