"""Graphs in YAML or JSON files: each mistake is reported with its line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any

import yaml

from spark_queue.errors import did_you_mean
from spark_queue.errors import unreadable_file as unreadable_file
from spark_queue.graph.file_mistakes import Mistake, graph_error, mistake_from_unicode, mistake_from_yaml
from spark_queue.graph.model import Graph, section_nouns
from spark_queue.graph.parts import FieldPath, SourceLocation
from spark_queue.graph.validation import allowed_keys, build_graph

#: The name of a file.
FileName = str | os.PathLike[str]

#: Returns the value of a secret by scope and key, as `dbutils.secrets.get` does.
Secrets = Callable[[str, str], str]

#: Returns the value of `${name}` in a file. Raises `KeyError` with the reason if there is none.
VariableLookup = Callable[[str], str]

_VARIABLE = re.compile(r"\$\$\{|\$\{([^{}]*?)(?::-([^{}]*))?\}")

#: The keys below which no variables are replaced: `${` may be part of an expression there.
_UNREPLACED_KEYS = ("selector", "set")

_MERGE = "tag:yaml.org,2002:merge"

#: What no text may have: NUL, and halves of characters, which JSON can write.
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


#: How deep lists and mappings of a file may be nested, and how many values it may have. An alias
#: counts as all that it stands for.
MAX_FILE_DEPTH, MAX_FILE_VALUES = 50, 100_000


class _Loader(yaml.SafeLoader):
    """YAML with the plain scalars of JSON only: a queue may be called `no` or `2013-01-01`.

    A number of more than 18 digits is text, too.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return the next node. Raises `ComposerError` if it is nested too deep."""
        self.depth += 1
        if self.depth > MAX_FILE_DEPTH:
            raise yaml.composer.ComposerError(None, None, _TOO_DEEP, self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        made = super().compose_node(parent, index)
        self.depth -= 1
        return made


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.rpartition(":")[2] in ("null", "merge")]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("int", r"-?(?:0|[1-9]\d{0,17})", "-0123456789"),
    ("float", r"-?(?:0|[1-9]\d*)\.\d+(?:[eE][-+]?\d+)?", "-0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first))


def load_graph(file: FileName, secrets: Secrets | None = None, *, graph_class: type[Graph] = Graph) -> Graph:
    """Return the graph in a YAML or JSON file.

    `graph_class`: its class, which may have more kinds of steps than `Graph`. In the file,
    `${NAME}` is an environment variable, and `${NAME:-default}` one with a default. `${file:PATH}`
    is the first line of a file, and `${secret:SCOPE/KEY}` the value that `secrets` returns. Raises
    `GraphError` with every mistake of the file, by line, and `OSError` if it cannot be read.
    """
    return parse_graph(read_text(file), str(file), variable_lookup(secrets), graph_class=graph_class)


def read_text(file: FileName) -> str:
    """Return the text of a file.

    Raises `GraphError` if it is not UTF-8, and `OSError` if it cannot be read.
    """
    try:
        return File(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise graph_error([mistake_from_unicode(error)], SourceLocation(str(file))) from None


def variable_lookup(secrets: Secrets | None = None) -> VariableLookup:
    """Return the function that resolves `${NAME}`, `${file:PATH}` and `${secret:SCOPE/KEY}`."""
    return lambda name: _look_up_variable(name, secrets)


def parse_graph(text: str, file: str, lookup: VariableLookup, *, graph_class: type[Graph] = Graph) -> Graph:
    """Return the graph in this text. Raises `GraphError` with every mistake, by line.

    `${name}` and `${name:-default}` are replaced, but not in selectors and `set`; `$${` is a plain
    `${`.
    """
    keys, nouns = allowed_keys((), graph_class), section_nouns(graph_class)
    raw, origin, mistakes = parse_declarations(text, file, lookup, keys, nouns)
    mistakes += _move_max_hops(raw)
    return build_graph(raw, origin, mistakes, graph_class)


def _move_max_hops(raw: dict[str, Any]) -> Iterator[Mistake]:
    """Move `main.max_hops`, as keuss-server has it, to `max_hops`. Yield what else is in `main`."""
    main = raw.pop("main", {})
    if not isinstance(main, dict):
        yield Mistake(("main",), "must be a mapping, such as {max_hops: 17}")
        return
    for key, value in main.items():
        if key != "max_hops":
            yield Mistake(("main", key), "unknown key; allowed is max_hops")
        elif "max_hops" in raw:
            yield Mistake(("main", key), "give either max_hops or main.max_hops")
        else:
            raw["max_hops"] = value


def parse_declarations(
    text: str, file: str, lookup: VariableLookup, keys: Sequence[str], nouns: Mapping[str, str] = {}
) -> tuple[Any, SourceLocation, list[Mistake]]:
    """Return the declarations of a text, their lines, and the mistakes so far.

    The variables of the text are replaced. `keys`: the allowed keys. `nouns`: as for `graph_error`.
    Raises `GraphError` if the text is neither YAML nor JSON, or not a mapping.
    """
    lines: dict[FieldPath, int] = {}
    try:
        node = yaml.compose(text.expandtabs(), _Loader)  # JSON may be indented with tabs, YAML must not
        if not isinstance(node, yaml.MappingNode):
            problem = f"the file must be a mapping with the keys {', '.join(keys)}"
            raise graph_error([Mistake((), problem)], SourceLocation(file))
        if too_much := _too_much(node):
            raise graph_error([too_much], SourceLocation(file))
        mistakes = list(_find_mistakes(node, (), lines, []))
        if any(one.text in (_RECURSIVE_ANCHOR, _KEY_NOT_TEXT) for one in mistakes):
            raise graph_error(mistakes, SourceLocation(file, lines), nouns)
        raw = _Loader("").construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: by a tag such as !!int
        raise graph_error([mistake_from_yaml(error)], SourceLocation(file)) from None
    return _replace_variables(raw, (), lookup, mistakes), SourceLocation(file, lines), mistakes


#: The mistakes that end the reading of a file.
_RECURSIVE_ANCHOR, _KEY_NOT_TEXT = "this anchor contains itself", "a key must be text, not a list or a mapping"
_TOO_DEEP = f"lists and mappings are nested more than {MAX_FILE_DEPTH} deep"


def _too_much(root: yaml.Node) -> Mistake | None:
    """Return a mistake if a file is nested too deep, or has too many values, by its aliases.

    Few lines of aliases can stand for more values than a machine has memory.
    """
    measured: dict[int, tuple[int, int]] = {}  # the values and the depth of each node

    def measure(node: yaml.Node) -> tuple[int, int]:
        if id(node) not in measured:  # an alias comes after what it stands for
            measured[id(node)] = 1, 1  # an anchor that contains itself is reported elsewhere
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            inner = node.value if isinstance(node, yaml.SequenceNode) else [one for pair in pairs for one in pair]
            values, depths = zip(*map(measure, inner), strict=True) if inner else ((), ())
            measured[id(node)] = 1 + sum(values), 1 + max(depths, default=0)
        return measured[id(node)]

    values, depth = measure(root)
    if values > MAX_FILE_VALUES:
        return Mistake(
            (), f"the file has more than {MAX_FILE_VALUES:,} values, with those that its aliases stand for"
        )
    return Mistake((), f"{_TOO_DEEP}, by its aliases") if depth > MAX_FILE_DEPTH else None


def _find_mistakes(
    node: yaml.Node, path: FieldPath, lines: dict[FieldPath, int], ancestors: Sequence[yaml.Node]
) -> Iterator[Mistake]:
    """Record the line of each part. Yield keys that are declared twice, and recursive anchors."""
    lines.setdefault(path, node.start_mark.line + 1)
    if any(node is one for one in ancestors):
        yield Mistake(path, _RECURSIVE_ANCHOR)
    elif isinstance(node, yaml.ScalarNode) and _NOT_TEXT.search(node.value):
        yield Mistake(path, "this text has a character that is not Unicode, or NUL: remove it")
    elif isinstance(node, yaml.SequenceNode):
        for number, one in enumerate(node.value):
            yield from _find_mistakes(one, (*path, number), lines, [*ancestors, node])
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                yield from _find_mistakes(value, path, lines, [*ancestors, node])
                continue
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                yield Mistake(path, _KEY_NOT_TEXT, line)
                continue
            below = (*path, str(key.value))
            lines[below] = line
            if first.setdefault(key.value, line) != line:
                yield Mistake(below, f"this key is declared twice, first in line {first[key.value]}", line)
            yield from _find_mistakes(value, below, lines, [*ancestors, node])


def _replace_variables(raw: Any, path: FieldPath, lookup: VariableLookup, mistakes: list[Mistake]) -> Any:
    """Return a part of a file with its variables replaced."""
    if isinstance(raw, dict):
        return {
            str(key): value
            if key in _UNREPLACED_KEYS
            else _replace_variables(value, (*path, str(key)), lookup, mistakes)
            for key, value in raw.items()
        }
    if isinstance(raw, list):
        return [_replace_variables(value, (*path, number), lookup, mistakes) for number, value in enumerate(raw)]
    if not isinstance(raw, str):
        return raw

    def value_of(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name is None:
            return "${"
        try:
            return lookup(name)
        except KeyError as error:
            if default is None:
                mistakes.append(Mistake(path, f"${{{name}}}: {error.args[0]}"))
            return default or ""

    return _VARIABLE.sub(value_of, raw)


def _look_up_variable(name: str, secrets: Secrets | None) -> str:
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
        raise KeyError(f"this environment variable is not set{did_you_mean(name, os.environ)}")
    return os.environ[name]
