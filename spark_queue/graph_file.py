"""Graphs in files of YAML or JSON, read so that every mistake has its line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as File
from typing import Any

import yaml

from spark_queue.errors import near
from spark_queue.errors import unreadable as unreadable
from spark_queue.graph import Graph
from spark_queue.graph_mistakes import Mistake, keys_at, read, refusal
from spark_queue.graph_parts import Origin, Path

#: Gives the value of a secret by scope and key, as `dbutils.secrets.get` does.
Secrets = Callable[[str, str], str]

#: What stands for `${name}` and the like in a file. Raises `KeyError` with what is wrong where there is nothing.
Fill = Callable[[str], str]

_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*?)(?::-([^{}]*))?\}")

#: Keys below which nothing is filled in: `${` may be the user's own there.
_AS_IT_IS = ("selector", "set")

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML with just the plain scalars of JSON: a queue may be called `no`, or `2013-01-01`."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] in ("null", "merge")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("int", r"-?(?:0|[1-9]\d*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9]\d*)\.\d+(?:[eE][-+]?\d+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first))


def graph_in(file: str | os.PathLike[str], secrets: Secrets | None = None) -> Graph:
    """The graph in a YAML or JSON file.

    `${NAME}` stands for a variable of the environment, `${NAME:-default}` has a default, `${file:PATH}` stands for
    the first line of a file, and `${secret:SCOPE/KEY}` for what `secrets` gives. Raises `GraphError` with every
    mistake of the file, by line, and `OSError` where it cannot be read.
    """
    text = File(file).read_text(encoding="utf-8")
    return parse(text, str(file), variables(secrets))


def variables(secrets: Secrets | None = None) -> Fill:
    """What stands for `${NAME}`, `${file:PATH}` and `${secret:SCOPE/KEY}`."""
    return lambda name: _value(name, secrets)


def parse(text: str, file: str, fill: Fill) -> Graph:
    """The graph in a file of this text. Raises `GraphError` with every mistake, by line.

    `${name}` and `${name:-default}` are filled in, but not in selectors and `set`; `$${` is a plain `${`.
    """
    return read(*loaded(text, file, fill, keys_at(())))


def loaded(text: str, file: str, fill: Fill, keys: Sequence[str]) -> tuple[Any, Origin, list[Mistake]]:
    """What a file of this text declares, with its variables filled in; where each part stands; mistakes so far.

    `keys`: those that it may have. Raises `GraphError` where it is no YAML, or no mapping.
    """
    lines: dict[Path, int] = {}
    try:
        node = yaml.compose(text.expandtabs(), _Loader)  # JSON may be indented with tabs, YAML must not
        if not isinstance(node, yaml.MappingNode):
            raise yaml.YAMLError(f"it must be a mapping with the keys {', '.join(keys)}")
        mistakes = list(_survey(node, (), lines, []))
        if any(one.text == _ENDLESS for one in mistakes):
            raise refusal(mistakes, Origin(file, lines))
        raw = _Loader("").construct_document(node)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        said = [getattr(error, "context", None), getattr(error, "problem", None)]
        what = ", ".join(filter(None, said)) or str(error)
        raise refusal([Mistake((), what, where.line + 1 if where else 0)], Origin(file)) from None
    return _filled(raw, (), fill, mistakes), Origin(file, lines), mistakes


_ENDLESS = "this anchor contains itself"


def _survey(node: yaml.Node, path: Path, lines: dict[Path, int], around: Sequence[yaml.Node]) -> Iterator[Mistake]:
    """Note the line of everything, and find keys that stand twice and anchors that contain themselves."""
    lines.setdefault(path, node.start_mark.line + 1)
    if any(node is one for one in around):
        yield Mistake(path, _ENDLESS)
    elif isinstance(node, yaml.SequenceNode):
        for number, one in enumerate(node.value):
            yield from _survey(one, (*path, number), lines, [*around, node])
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                yield from _survey(value, path, lines, [*around, node])
                continue
            below, line = (*path, str(key.value)), key.start_mark.line + 1
            lines[below] = line
            if first.setdefault(key.value, line) != line:
                yield Mistake(below, f"it is there twice; the first is in line {first[key.value]}", line)
            yield from _survey(value, below, lines, [*around, node])


def _filled(raw: Any, path: Path, fill: Fill, mistakes: list[Mistake]) -> Any:
    """What a file says, with its variables filled in."""
    if isinstance(raw, dict):
        return {
            str(key): value if key in _AS_IT_IS else _filled(value, (*path, str(key)), fill, mistakes)
            for key, value in raw.items()
        }
    if isinstance(raw, list):
        return [_filled(value, (*path, number), fill, mistakes) for number, value in enumerate(raw)]
    if not isinstance(raw, str):
        return raw

    def value_of(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name is None:
            return "${"
        try:
            return fill(name)
        except KeyError as error:
            if default is None:
                mistakes.append(Mistake(path, f"${{{name}}}: {error.args[0]}"))
            return default or ""

    return _VARIABLE.sub(value_of, raw)


def _value(name: str, secrets: Secrets | None) -> str:
    """What `${name}` stands for in a file. Raises `KeyError` with what is wrong where that is nothing."""
    kind, colon, rest = name.partition(":")
    if colon and kind == "file":
        try:
            return File(rest).read_text(encoding="utf-8").partition("\n")[0].strip()
        except OSError as error:
            raise KeyError(f"{error.strerror or error}") from error
    if colon and kind == "secret":
        scope, slash, key = rest.partition("/")
        if secrets is None or not slash:
            raise KeyError(
                "give `secrets`, a function of scope and key" if slash else "it must be ${secret:SCOPE/KEY}"
            )
        return secrets(scope, key)
    if name not in os.environ:
        raise KeyError(f"there is no such variable in the environment{near(name, os.environ)}")
    return os.environ[name]
