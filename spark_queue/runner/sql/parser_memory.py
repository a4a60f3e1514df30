"""Bound what Spark's parser remembers.

To read the next text in less time, the parser (ANTLR) keeps how it has decided on each piece of a
text: a DFA, and its contexts, which all parsers of the process share. It forgets nothing. Refused
texts count, too: 2.5 MB of different texts fill 1 GB. Spark 4.1 and later can bound that by a conf,
4.0 cannot. So it is done here for all of them.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import get_method

from spark_queue.graph.sql_limits import MAX_TEXT

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

_PARSER = "org.apache.spark.sql.catalyst.parser.SqlBaseParser"


class ParserMemory:
    """Clears what Spark's parser remembers each time it has read many characters.

    Threads may share it.
    """

    def __init__(self, most: int) -> None:
        """`most`: the number of characters after which it is cleared."""
        self._most, self._characters, self._lock = most, 0, Lock()

    def count(self, jvm: JVMView, text: str) -> None:
        """Count the characters of a text that was parsed.

        A text that another thread parses at that moment gives the same tree, in more time.
        """
        with self._lock:
            self._characters += len(text)
            if self._characters >= self._most:
                jvm.org.apache.spark.sql.catalyst.parser.SqlBaseParser(None).getInterpreter().clearDFA()
                get_method(contexts(jvm), "clear")()  # JavaMap.clear of py4j removes each entry in a call
                self._characters = 0


def contexts(jvm: JVMView) -> Any:
    """Return the contexts that all parsers of the process share: a map of Java.

    There is no public way to it.
    """
    cache = _field(jvm, _PARSER, "_sharedContextCache").get(None)
    return _field(jvm, cache.getClass().getName(), "cache").get(cache)


def _field(jvm: JVMView, of: str, name: str) -> Any:
    field = jvm.java.lang.Class.forName(of).getDeclaredField(name)
    field.setAccessible(True)
    return field


#: That of the JVM of this process. A text of the largest size takes about 25 MB.
PARSER_MEMORY = ParserMemory(MAX_TEXT)
