"""Explain wrong calls: the mistake in an argument, an option or a command, and the right call."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from spark_queue.errors import did_you_mean
from spark_queue.options.masking import mask, mask_words, masked_repr

#: The variable with the default URL. A password is safer there: other users can see the arguments
#: of a process.
URL_VARIABLE = "SPARK_QUEUE_URL"

#: `UsageError` of click, or of Typer's copy of it. It is printed below the usage of the command.
ClickUsageError: type[Any] = typer.BadParameter.__bases__[0]

EXAMPLE = "sqlite:///queues.db"

#: Paths and names of SQLite files.
_SQLITE_FILE = re.compile(r"[~./].*|.+\.(?:db|sqlite3?)")

#: Names of commands in other queue tools, and our names.
_OTHER_NAMES = {
    "send": "push", "put": "push", "enqueue": "push", "add": "push", "produce": "push",
    "receive": "reserve", "get": "pop", "dequeue": "pop", "take": "pop", "read": "peek", "show": "peek",
    "ack": "commit", "delete": "commit", "done": "commit", "nack": "rollback", "reject": "rollback",
    "retry": "rollback", "count": "size", "sizes": "size", "length": "size", "ls": "list-topics",
    "list": "list-topics", "queues": "list-topics", "purge": "purge-queue", "clear": "purge-queue",
    "dlq": "deadletter", "dead": "deadletter", "server": "serve", "check": "doctor", "info": "size",
}  # fmt: skip


# --- the URL --------------------------------------------------------------------------------------


def is_url(text: str) -> bool:
    """Return whether a text has the form of a URL, with any scheme."""
    return "://" in text


def is_store(text: str) -> bool:
    """Return whether a text is the URL of a store."""
    from spark_queue.stores import STORES  # so that --help starts fast

    return is_url(text) and text.partition("://")[0] in STORES


def explain_wrong_url(text: str) -> str | None:
    """Return the mistake in the URL of a store; `None` if it is valid or does not look like one."""
    from spark_queue.stores import STORES

    scheme, colon, rest = text.partition(":")
    if is_url(text):
        if scheme in STORES:
            return None
        alike = did_you_mean(scheme, STORES)
        hint = re.sub(r"'([^']+)'", r"\1://", alike) or f"; it must begin with {_schemes()}"
        return f"the URL begins with {scheme}://, which is no database that spark_queue knows{hint}"
    if colon and (scheme in STORES or did_you_mean(scheme, STORES)):
        if scheme not in STORES or "@" in rest:  # it may contain a password, so it is not printed
            return f"the URL is malformed: it must begin with {_schemes()}"
        right = f"{scheme}://{'/' if scheme == 'sqlite' else ''}{rest.lstrip('/')}"
        return f"{text!r} is not a URL; write {right}"
    if _SQLITE_FILE.fullmatch(text) or Path(text).is_file():
        return f"{text!r} is a path, not a URL; write sqlite:///{text}"
    return None


def _schemes() -> str:
    from spark_queue.stores import STORES

    *first, last = (f"{name}://" for name, one in STORES.items() if not one.variant_of)
    return f"{', '.join(first)} or {last}"


def explain_missing_url(command: Any, ctx: Any, given: Sequence[str]) -> str:
    """Return the error for a call without a URL, with both ways to set it."""
    rest = _format_call(command, given, after=1)
    if not _arguments(command)[1:] and given:
        return f"{hide_password(given[0], 'the argument')} is not a URL; write {EXAMPLE}, mongodb://host/db or redis://host/0"
    return (
        f"the URL of the store is missing. Give it first:\n"
        f"  {ctx.command_path} {' '.join([EXAMPLE, *rest])}\n"
        f"or set it once:\n"
        f"  export {URL_VARIABLE}={EXAMPLE}\n"
        f"  {' '.join([ctx.command_path, *rest])}"
    )


def explain_swapped_url(command: Any, ctx: Any, given: Sequence[str]) -> str:
    """Return the error for a URL after the queue."""
    right = _format_call(command, [given[1], given[0], *given[2:]])
    return f"the URL comes before the queue: {' '.join([ctx.command_path, *right])}"


def hide_password(text: str, instead: str) -> str:
    """Return an argument without passwords: a masked URL, or `instead` if it may contain one."""
    if "@" in text and not is_url(text):
        return instead
    return shlex.quote(mask(text) if is_url(text) else text)


def _arguments(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "argument"]


def _name(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _format_call(command: Any, given: Sequence[str], after: int = 0) -> list[str]:
    """Return the arguments of a call, followed by the names of the missing ones."""
    wanted = _arguments(command)[after:]
    names = [_name(one) for one in wanted]
    parts = [
        hide_password(one, names[min(place, len(names) - 1)] if names else "…") for place, one in enumerate(given)
    ]
    return parts + [_name(one) for one in wanted[len(given) :] if one.required]


# --- errors of Typer ------------------------------------------------------------------------------


def explain(
    error: Any, command: Any, ctx: Any, args: Sequence[str], given: Sequence[str] = (), url: str | None = None
) -> Exception:
    """Convert an error of Typer to one that shows the right call, without passwords.

    `args`: the words of the call. `given`: those that are arguments. `url`: the URL of the
    environment, if the call uses it.
    """
    kind, text = type(error).__name__, None
    wrong_url = explain_wrong_url(given[0]) if url and given else None
    if kind == "NoSuchOption":
        text = _explain_unknown_option(error.option_name, command, ctx)
    elif kind == "MissingParameter" and error.param is not None:
        text = wrong_url or _explain_missing(error.param, command, ctx, given, url)
    elif kind == "BadParameter" and hasattr(error.__cause__, "errors"):
        error.message = _explain_value(error.__cause__.errors()[0])
    elif str(error.message).startswith("Got unexpected extra argument"):
        text = wrong_url or _explain_too_many(command, ctx, given, url)
    found = error if text is None else ClickUsageError(text, ctx)
    found.message = mask_words(str(found.message), args)
    return found  # type: ignore[no-any-return]


def _explain_missing(param: Any, command: Any, ctx: Any, given: Sequence[str], url: str | None) -> str:
    if param.param_type_name == "option":
        return f"option {param.opts[-1]} is missing: {param.help}"
    call = " ".join([ctx.command_path, *_format_call(command, given, 1 if url else 0)])
    listing = " ".join(["spark-queue list-topics", *[hide_password(one, "URL") for one in given[:1] if is_url(one)]])
    hint = f"\n`{listing}` shows the queues" if _name(param) == "QUEUE" else ""
    return f"{_name(param)} is missing: {call}{hint}"


def _explain_too_many(command: Any, ctx: Any, given: Sequence[str], url: str | None) -> str:
    wanted = _arguments(command)[1 if url else 0 :]
    extra = ", ".join(hide_password(one, "…") for one in given[len(wanted) :])
    names = " ".join([ctx.command_path, *(_name(one) for one in wanted)])
    source = f"; the URL comes from {URL_VARIABLE}" if url else ""
    return f"too many arguments: {extra}. The call is {names}{source}"


def _explain_unknown_option(name: str, command: Any, ctx: Any) -> str:
    if name in ("--url", "--queue") and len(_arguments(command)) > 1:
        call = " ".join(
            [ctx.command_path, *(_name(one) for one in _arguments(command) if one.required or one.name == "url")]
        )
        return f"URL and QUEUE are arguments here, not options: {call}"
    root = ctx.find_root()
    if name in _flags(root.command) and ctx is not root:
        return f"option {name} goes before the command: {root.command_path} {name} … {command.name} …"
    hint = did_you_mean(name, _flags(command))
    others = [path for path, one in walk_commands(root.command) if name in _flags(one)]
    if not hint and others:
        some = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
        hint = f"; it belongs to {some}" + (", and goes after the command" if ctx is root else "")
    return f"{ctx.command_path} has no option {name}{hint}"


def _flags(command: Any) -> set[str]:
    return {flag for one in command.params if one.param_type_name == "option" for flag in one.opts}


def walk_commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all commands with their full names, also the commands of groups."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from walk_commands(one, f"{name} ")
        else:
            yield f"{path}{name}", one


def _explain_value(error: Any) -> str:
    """Return the error for a value that pydantic, which Typer uses, refuses."""
    value, facts = error.get("input"), error.get("ctx", {})
    match error["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return f"{value!r} is not a whole number"
        case "float_parsing" | "float_type":
            return f"{value!r} is not a number"
        case "greater_than_equal":
            return f"{value} is too small: it must be {facts['ge']} or more"
        case "less_than_equal":
            return f"{value} is too large: it must be {facts['le']} or less"
        case _:
            return str(error["msg"]).removeprefix("Value error, ").removesuffix(".")


def explain_unknown_command(group: Any, ctx: Any, args: Sequence[str]) -> str:
    """Return the error for an unknown command, with similar ones."""
    name, rest = args[0], list(args[1:])
    if is_url(name) or explain_wrong_url(name):
        command = next((one for one in rest if one in group.commands), "COMMAND")
        if command in rest:
            rest.remove(command)
        call = [ctx.command_path, command, *(hide_password(one, "URL") for one in (name, *rest))]
        return f"the command comes before the URL: {' '.join(call)}"
    known = list(group.commands)
    other = _OTHER_NAMES.get(name.lower(), "")
    hint = (f"; did you mean {other!r}?" if other in known else "") or did_you_mean(name, known)
    if not hint:
        names = [one for one in group.list_commands(ctx) if not group.commands[one].hidden]
        hint = f"; its commands are {', '.join(names)}" if len(names) < 12 else ""
    return f"{ctx.command_path} has no command {masked_repr(name)}{hint}"
