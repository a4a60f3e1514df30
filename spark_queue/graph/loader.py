"""Graphs in YAML or JSON files: each mistake is reported with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any

import yaml

from spark_queue.errors import near
from spark_queue.errors import unreadable as unreadable
from spark_queue.graph.file_mistakes import NAMELESS, Mistake, refusal, undecoded, unparsed
from spark_queue.graph.model import Graph, nouns
from spark_queue.graph.parts import Origin, Path
from spark_queue.graph.validation import keys_at, read

#: Returns the value of a secret by scope and key, as `dbutils.secrets.get` does.
Secrets = Callable[[str, str], str]

#: Returns the value of `${name}` in a file. Raises `KeyError` with the reason if there is none.
Fill = Callable[[str], str]

_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*?)(?::-([^{}]*))?\}")

#: The keys below which no variables are replaced: `${` may be part of an expression there.
_NOT_FILLED_IN = ("selector", "set")

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML with the plain scalars of JSON only: a queue may be called `no` or `2013-01-01`."""


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


def graph_in(file: str | os.PathLike[str], secrets: Secrets | None = None, *, of: type[Graph] = Graph) -> Graph:
    """Return the graph in a YAML or JSON file.

    `graph_class`: its class, which may have more kinds of steps than `Graph`. In the file,
    `${NAME}` is an environment variable, and `${NAME:-default}` one with a default. `${file:PATH}`
    is the first line of a file, and `${secret:SCOPE/KEY}` the value that `secrets` returns. Raises
    `GraphError` with every mistake of the file, by line, and `OSError` if it cannot be read.
    """
    return parse(text_of(file), str(file), variables(secrets), of=of)


def text_of(file: str | os.PathLike[str]) -> str:
    """Return the text of a file. Raises `GraphError` if it is not UTF-8, and `OSError` if it cannot be read."""
    try:
        return File(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise refusal([undecoded(error)], Origin(str(file))) from None


def variables(secrets: Secrets | None = None) -> Fill:
    """Return the function that resolves `${NAME}`, `${file:PATH}` and `${secret:SCOPE/KEY}`."""
    return lambda name: _value(name, secrets)


def parse(text: str, file: str, fill: Fill, *, of: type[Graph] = Graph) -> Graph:
    """Return the graph in this text. Raises `GraphError` with every mistake, by line.

    `${name}` and `${name:-default}` are replaced, but not in selectors and `set`; `$${` is a plain
    `${`.
    """
    return read(*loaded(text, file, fill, keys_at((), of), nouns(of)), of=of)


def loaded(
    text: str, file: str, fill: Fill, keys: Sequence[str], nouns: Mapping[str, str] = NAMELESS
) -> tuple[Any, Origin, list[Mistake]]:
    """Return the declarations of a text, their lines, and the mistakes so far.

    The variables of the text are replaced. `keys`: the allowed keys. `nouns`: as for `graph_error`.
    Raises `GraphError` if the text is neither YAML nor JSON, or not a mapping.
    """
    lines: dict[Path, int] = {}
    try:
        node = yaml.compose(text.expandtabs(), _Loader)  # JSON may be indented with tabs, YAML must not
        if not isinstance(node, yaml.MappingNode):
            what = f"the file must be a mapping with the keys {', '.join(keys)}"
            raise refusal([Mistake((), what)], Origin(file))
        mistakes = list(_survey(node, (), lines, []))
        if any(one.text in (_ENDLESS, _NO_KEY) for one in mistakes):
            raise refusal(mistakes, Origin(file, lines), nouns)
        raw = _Loader("").construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: by a tag such as !!int
        raise refusal([unparsed(error)], Origin(file)) from None
    return _filled(raw, (), fill, mistakes), Origin(file, lines), mistakes


#: The mistakes that end the reading of a file.
_ENDLESS, _NO_KEY = "this anchor contains itself", "a key must be text, not a list or a mapping"


def _survey(node: yaml.Node, path: Path, lines: dict[Path, int], around: Sequence[yaml.Node]) -> Iterator[Mistake]:
    """Record the line of each part. Yield keys that are declared twice, and recursive anchors."""
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
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield Mistake(path, _NO_KEY, line)
                continue
            below = (*path, str(key.value))
            lines[below] = line
            if first.setdefault(key.value, line) != line:
                yield Mistake(below, f"this key is declared twice, first in line {first[key.value]}", line)
            yield from _survey(value, below, lines, [*around, node])


def _filled(raw: Any, path: Path, fill: Fill, mistakes: list[Mistake]) -> Any:
    """Return a part of a file with its variables replaced."""
    if isinstance(raw, dict):
        return {
            str(key): value if key in _NOT_FILLED_IN else _filled(value, (*path, str(key)), fill, mistakes)
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
    """Return the value of `${name}`. Raises `KeyError` with the reason if there is none."""
    kind, colon, rest = name.partition(":")
    if colon and kind == "file":
        try:
            return File(rest).read_text(encoding="utf-8").partition("\n")[0].strip()
        except OSError as error:
            raise KeyError((error.strerror or str(error)).lower()) from error
    if colon and kind == "secret":
        scope, slash, key = rest.partition("/")
        if secrets is None or not slash:
            remedy = "this program reads no secrets: pass `secrets`, a function of scope and key"
            raise KeyError(remedy if slash else "write ${secret:SCOPE/KEY}")
        return secrets(scope, key)
    if name not in os.environ:
        raise KeyError(f"this environment variable is not set{near(name, os.environ)}")
    return os.environ[name]
