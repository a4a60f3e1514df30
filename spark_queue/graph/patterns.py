"""Regular expressions of selectors: those that take long on any text are refused.

Java tries all ways in which a pattern may match. With a repetition in a repetition, as in `(a+)+b`,
their number doubles with each letter of the text. And it ends the thread, and with it the JVM, if
the text is long and a group repeats, as in `(a|b)*`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

#: The most times that something may be repeated by number, and that a group may be repeated. Java
#: calls itself for each time that a group is repeated, and a long text would end the JVM.
_MAX_COUNT, _MAX_GROUP = 1_000, 100

#: The most ways in which the repetitions of a group may match the same text.
_MAX_WAYS = 1_000

_COUNTED = re.compile(r"\{(\d+)(,(\d*))?\}")
_GROUP_HEAD = re.compile(r"\(\?(?:[:=!>]|<[=!]|<\w+>|[a-zA-Z-]+:?)|\(")


def pattern_mistake(pattern: str) -> str:
    """Return why a regular expression is refused; an empty text if it is not."""
    try:
        _Scanner(pattern).scan()
    except ValueError as mistake:
        return str(mistake)
    return ""


def shortest_match(pattern: str) -> int:
    """Return the fewest characters that a regular expression matches, 0 if that is not known."""
    try:
        return _Scanner(pattern).scan()
    except ValueError:
        return 0


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a pattern: the fewest characters that it matches, and in how many ways."""

    shortest: int
    ways: float = 1
    is_group: bool = False


class _Scanner:
    """Reads a pattern once. The syntax is that of Java, which refuses malformed patterns."""

    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0

    def scan(self) -> int:
        """Return the fewest characters of a match. Raises `ValueError`."""
        shortest = self._alternatives(0).shortest
        return shortest if self._at >= len(self._pattern) else 0

    def _alternatives(self, depth: int) -> _Part:
        """Read up to the end of a group. Raises `ValueError`."""
        if depth > 50:
            raise ValueError("a pattern with at most 50 groups within each other")
        lengths, shortest, ways, earlier = list[int](), 0, 1.0, 0.0
        while self._at < len(self._pattern) and self._pattern[self._at] != ")":
            if self._pattern[self._at] == "|":
                lengths.append(shortest)
                shortest, ways, earlier = 0, 1.0, earlier + ways
                self._at += 1
                continue
            part = self._atom(depth)
            fewest, most = self._quantifier()
            if part.is_group and most > _MAX_GROUP:
                raise ValueError(f"a pattern whose groups repeat at most {_MAX_GROUP} times, as in (ab){{0,100}}")
            if most > 1 and part.ways > 1 and most * math.log(part.ways) > math.log(_MAX_WAYS):
                raise ValueError(
                    "a pattern without a repetition in a repetition, as in (a+)+: it may take years on a long text"
                )
            repeated = part.ways if most in (0, math.inf) else part.ways**most
            ways = min(ways * repeated * (most - fewest + 1), 1e300)
            shortest = min(shortest + part.shortest * fewest, 1 << 30)
        return _Part(min([*lengths, shortest]), earlier + ways, is_group=True)

    def _atom(self, depth: int) -> _Part:
        """Read a character, a class, an escape or a group. Raises `ValueError`."""
        char = self._pattern[self._at]
        if char == "(":
            head = _GROUP_HEAD.match(self._pattern, self._at)
            assert head is not None  # it matches a parenthesis alone
            self._at = head.end()
            found = self._alternatives(depth + 1)
            self._at += 1
            flags = head[0][2:].rstrip(":")
            if "x" in flags and flags.isalpha():
                raise ValueError("a pattern without the flag x, which hides parts of it")
            return replace(found, shortest=0) if head[0].endswith(("=", "!")) else found
        if char == "[":
            self._class()
            return _Part(1)
        if char == "\\":
            return _Part(self._escape())
        self._at += 1
        return _Part(0 if char in "^$" else 1)

    def _class(self) -> None:
        """Read a class such as `[^a-z&&[b]]`. Raises `ValueError`."""
        level = 0
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char == "\\":
                self._escape()
                continue
            self._at += 1
            level += (char == "[") - (char == "]")
            if level == 0:
                return
            if char == "[" and self._pattern[self._at : self._at + 1] == "]":  # a bracket as a character
                self._at += 1
            elif char == "[" and self._pattern[self._at : self._at + 2] == "^]":
                self._at += 2

    def _escape(self) -> int:
        """Read an escape; return its fewest characters. Raises `ValueError`."""
        char = self._pattern[self._at + 1 : self._at + 2]
        if char == "Q":
            end = self._pattern.find("\\E", self._at)
            text = self._pattern[self._at + 2 : end if end >= 0 else None]
            self._at = len(self._pattern) if end < 0 else end + 2
            return 1 if text else 0  # a quantifier after it is of its last character
        if (char.isdigit() and char != "0") or char == "k":
            raise ValueError("a pattern without references to its groups, such as \\1")
        self._at += 2
        if char in ("p", "P", "x", "N", "u"):
            if self._pattern[self._at : self._at + 1] == "{":
                end = self._pattern.find("}", self._at)
                self._at = len(self._pattern) if end < 0 else end + 1
            elif char in ("p", "P"):
                self._at += 1
        return 0 if char in ("b", "B", "A", "Z", "z", "G") else 1

    def _quantifier(self) -> tuple[int, float]:
        """Read a quantifier, if any: the fewest and the most times. Raises `ValueError`."""
        times: tuple[int, float] = (1, 1)
        char = self._pattern[self._at : self._at + 1]
        if char and char in "*+?":
            self._at += 1
            times = {"*": (0, math.inf), "+": (1, math.inf), "?": (0, 1)}[char]
        elif counted := _COUNTED.match(self._pattern, self._at):
            self._at = counted.end()
            fewest = int(counted[1])
            most = float(fewest if counted[2] is None else counted[3] or math.inf)
            if max(fewest, 0 if math.isinf(most) else most) > _MAX_COUNT:
                raise ValueError(f"a pattern that repeats at most {_MAX_COUNT:,} times")
            times = fewest, most
        else:
            return times
        if self._pattern[self._at : self._at + 1] in ("+", "?"):  # possessive, reluctant
            self._at += 1
        if self._pattern[self._at : self._at + 1] in ("*", "+", "{"):
            raise ValueError("a pattern without a repetition of a repetition")
        return times
