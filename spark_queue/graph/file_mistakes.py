"""Mistakes in files of declarations: each with its line, its path, the error, and the remedy.

Most of them are found by pydantic and YAML, whose messages are translated here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from spark_queue.errors import GraphError, did_you_mean, plural
from spark_queue.graph.parts import FieldPath, SourceLocation
from spark_queue.options.masking import mask_if_url, masked_repr


@dataclass(frozen=True)
class Mistake:
    """A mistake: its path, and its text. `line`: from 1; 0 if there is no file."""

    path: FieldPath
    text: str
    line: int = 0

    def describe(self, nouns: Mapping[str, str]) -> str:
        """Return the line, the path and the text in one line; `nouns`: as for `graph_error`."""
        where = ", ".join(filter(None, [f"line {self.line}" if self.line else "", _path_text(self.path, nouns)]))
        return f"{where}: {self.text}" if where else self.text


def _path_text(path: FieldPath, nouns: Mapping[str, str]) -> str:
    """Return a path as text."""
    match path:
        case (section, name, "dst", int(number), *rest) if section in nouns:
            words = [f"{nouns[str(section)]} {masked_repr(str(name))}", f"destination {number + 1}"]
        case (section, name, *rest) if section in nouns:
            words = [f"{nouns[str(section)]} {masked_repr(str(name))}"]
        case (str(section), int(number), *rest):
            words = [f"{section.removesuffix('s')} {number + 1}"]
        case _:
            words, rest = [], list(path)
    key = ".".join("in" if part == "in_" else mask_if_url(str(part)) for part in rest)
    return ", ".join([*words, key] if rest else words)


def graph_error(mistakes: Iterable[Mistake], origin: SourceLocation, nouns: Mapping[str, str] = {}) -> GraphError:
    """Return an error with all mistakes, in the order of their lines.

    `nouns`: the noun for one entry of each section that has named entries, such as
    `{"links": "link"}`.
    """
    found = [replace(one, line=one.line or _line_of(origin.lines, one.path)) for one in mistakes]
    found.sort(key=lambda one: (one.line, [str(part) for part in one.path]))
    lines = [one.describe(nouns) for one in found]
    head = f"{origin.file or 'the graph'} has {plural(len(found), 'mistake')}:"
    return GraphError("\n  ".join([head, *lines]), mistakes=lines, file=origin.file)


def _line_of(lines: Mapping[FieldPath, int], path: FieldPath) -> int:
    """Return the line of a path, or of the nearest path above it."""
    return next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), 0)


# --- values that do not fit -----------------------------------------------------------------------

_NUMBER, _BOOLEAN = "must be a whole number", "must be true or false"
_LIST, _MAPPING = "must be a list, such as [a, b]", "must be a mapping, such as {{key: value}}"

#: The texts for the errors of pydantic.
_PYDANTIC_TEXTS = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "int_type": _NUMBER, "int_parsing": _NUMBER, "int_from_float": _NUMBER, "int_parsing_size": _NUMBER,
    "finite_number": _NUMBER,
    "float_type": "must be a number", "float_parsing": "must be a number",
    "bool_type": _BOOLEAN, "bool_parsing": _BOOLEAN,
    "list_type": _LIST, "tuple_type": _LIST,
    "dict_type": _MAPPING, "mapping_type": _MAPPING, "dataclass_type": _MAPPING,
    "greater_than_equal": "must be {ge:g} or more", "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be {le} or less", "less_than": "must be less than {lt}",
}  # fmt: skip


def mistake_from_pydantic(error: Any, keys: Callable[[FieldPath], list[str]]) -> Mistake:
    """Return a mistake for an error of pydantic. `keys` returns the allowed keys at a path."""
    path = tuple(part for part in error["loc"] if part != "[key]")
    kind, facts, value = error["type"], error.get("ctx", {}), error.get("input")
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        known = keys(path[:-1])
        hint = did_you_mean(str(path[-1]), known) or f"; allowed are {', '.join(known)}"
        return Mistake(path, f"unknown key{hint}")
    if kind in ("missing", "missing_argument"):
        return Mistake(path[:-1], f"{path[-1]!r} is missing")
    if kind == "value_error":
        return Mistake(path, f"must be {facts['error']}")
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(facts.get("expected", "")))
        hint = _actual_value(value) + did_you_mean(str(value), allowed)
        return Mistake(path, f"must be one of {', '.join(allowed)}{hint}")
    if kind in _PYDANTIC_TEXTS:
        return Mistake(path, _PYDANTIC_TEXTS[kind].format(**facts) + _actual_value(value))
    return Mistake(path, re.sub("^Input should ", "must ", str(error["msg"])))


def _actual_value(value: Any) -> str:
    """Return the wrong value as text if it is a number, else an empty text.

    A text may be a secret that a variable has filled in.
    """
    if isinstance(value, bool):
        return f", not {str(value).lower()}"
    return f", not {value}" if isinstance(value, int | float) and len(str(value)) < 30 else ""


# --- text that cannot be read ---------------------------------------------------------------------

#: The texts for the messages of the YAML parser; the first pattern that matches decides.
_YAML_TEXTS = (
    (r"(lists and mappings are nested .*)", "{0}"),
    (r"mapping values are not allowed", "unexpected ':': check the indentation, or put quotes around the text"),
    (r"sequence entries are not allowed", "unexpected '- ': begin the list in a line of its own, below its key"),
    (r"found '<stream end>'|got '<stream end>'|unexpected end of stream", "the {context} is not closed"),
    (r"expected ',' or '(.)'", "the {context} is not closed: '{0}' or a comma is missing"),
    (r"block mapping.*found '<(?:block mapping|block sequence)", "wrong indentation: it must be that of {context}"),
    (r"expected <block end>", "unexpected text: check the indentation and the quotes"),
    (r"found character '(.)' that cannot start", "a value cannot begin with {0}: put quotes around it"),
    (r"found character '\\t'", "tabs cannot indent: use spaces"),
    (r"found another document", "the file has a second document after '---': keep one"),
    (r"constructor for the tag '(?:tag:yaml.org,2002:)?(.*)'", "the tag {0} is not allowed here: leave it out"),
    (r"undefined alias '(.*)'", "*{0} refers to an anchor that does not exist: declare it before as &{0}"),
    (r"duplicate anchor '(.*)'", "the anchor &{0} is declared twice: rename one"),
    (r"unacceptable character (#x\w+)", "the file has a character that is not text ({0}): remove it"),
    (r"unknown escape character '(.)'", "\\{0} is no escape in double quotes: write \\\\{0}, or use single quotes"),
    (r"for merging", "<< must be a mapping, or a list of mappings"),
    (r"unhashable key", "a key must be text, not a list or a mapping"),
    (r"expected the node content, but found '(.)'", "unexpected '{0}': put quotes around the text"),
    (r"could not find expected ':'", "a ':' is missing after the key"),
)  # fmt: skip

_CONTEXTS = {"flow sequence": "list", "flow mapping": "mapping", "flow node": "list", "quoted scalar": "quote"}


def mistake_from_yaml(error: Exception) -> Mistake:
    """Return a mistake for an error of the YAML parser."""
    first, second = getattr(error, "context_mark", None), getattr(error, "problem_mark", None)
    texts = [getattr(error, name, None) for name in ("context", "problem")]
    problem = ", ".join(filter(None, texts)) or str(error)
    start_line, line = (one.line + 1 if one else 0 for one in (first, second))
    start_line, line = start_line or line, line or start_line
    context = next((name for words, name in _CONTEXTS.items() if words in problem), "")
    context = f"{context} that begins in line {start_line}" if context else f"line {start_line}"
    for pattern, text in _YAML_TEXTS:
        if found := re.search(pattern, problem):
            return Mistake((), text.format(*found.groups(), context=context), line)
    if not isinstance(error, yaml.YAMLError):
        return Mistake((), f"a value does not fit its tag: {problem}", line)
    return Mistake((), f"this is neither YAML nor JSON: {problem.splitlines()[0]}", line)


def mistake_from_unicode(error: UnicodeDecodeError) -> Mistake:
    """Return a mistake for text that is not UTF-8."""
    line = error.object[: error.start].count(b"\n") + 1
    return Mistake((), f"byte 0x{error.object[error.start]:02x} is not UTF-8: save the file as UTF-8", line)
