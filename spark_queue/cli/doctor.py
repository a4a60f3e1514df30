"""Checks of this machine and of a database."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from spark_queue import admin
from spark_queue.cli.output import console, print_json, print_result, printable
from spark_queue.cli.params import Command, JsonFlag, MaybeUrl, app, option
from spark_queue.errors import OptionError

#: The sign and the colour of a finding, by its state.
SIGNS = {"good": ("ok", "green"), "worry": ("!", "yellow"), "bad": ("FAILED", "bold red")}


@app.command("doctor", cls=Command)
def run_doctor(
    url: MaybeUrl = None,
    remove_note: Annotated[str | None, option("--remove-note", "KEY", "Only remove this damaged note.")] = None,
    json: JsonFlag = False,
) -> None:
    """Check this machine and a database.

    Each line that needs attention is followed by what to do. Exit code 1 if a check failed.
    """
    if remove_note is not None:
        if url is None:
            raise OptionError("--remove-note needs the URL of the database", option="url")
        admin.damage.remove_note(url, remove_note)
        print_result({"removed": remove_note}, f"note {remove_note} removed", json=json)
        return
    found = []
    for one in admin.doctor.examine(url):
        found.append(one)
        if json:
            continue
        sign, colour = SIGNS[one.state]
        text = Text(f"{sign:7}", style=colour).append(f"{one.what:17}", "bold").append(printable(one.told), "default")
        console().print(text, soft_wrap=True)
        if one.todo:
            console().print(Text(f"{'':24}→ {printable(one.todo)}", style=colour), soft_wrap=True)
    failed = any(one.state == "bad" for one in found)
    if json:
        print_json({"failed": failed, "findings": found})
    if failed:
        raise typer.Exit(1)
