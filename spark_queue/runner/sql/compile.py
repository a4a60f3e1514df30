"""From the text of an expression to a Column, which is made of the tree that was checked.

Spark reads the text once. `expr()` would read it again, later, with the session of another thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Column, SparkSession

from spark_queue.errors import GraphError
from spark_queue.graph.parts import ForeignSql
from spark_queue.graph.sql_functions import sql_mistake
from spark_queue.runner.sql.parser_memory import PARSER_MEMORY
from spark_queue.runner.sql.rules import check_tree
from spark_queue.runner.sql.sizes import check_sizes
from spark_queue.runner.sql.tree import read_tree

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView

#: Where Spark 4.2 and later keep their own functions, and those of a session.
_BUILTIN, _SESSION = ("builtin", "system"), ("session", "system")


def compile_foreign(spark: SparkSession, expression: ForeignSql, sql: str, hidden: frozenset[str]) -> Column:
    """Return the Column of an expression of a file or a caller.

    `sql`: its text for Spark. `hidden`: the columns that this text may have in addition. Raises
    `GraphError` if it is not allowed, and `PySparkException` if Spark cannot parse it.
    """
    if mistake := sql_mistake(expression):
        raise GraphError(f"must be {mistake}")
    parsed = parse_checked(spark, sql, hidden)
    from pyspark.sql.classic.column import Column as ClassicColumn

    return ClassicColumn(_jvm(spark).org.apache.spark.sql.classic.ExpressionUtils.column(parsed))


def parse_checked(spark: SparkSession, sql: str, hidden: frozenset[str] = frozenset()) -> Any:
    """Parse an expression once, and return its tree in the JVM, which is checked.

    Raises `GraphError` if it is not allowed, and `PySparkException` if Spark cannot parse it.
    """
    session: Any = spark._jsparkSession.sessionState()
    try:
        parsed = session.sqlParser().parseExpression(sql)
        root = read_tree(parsed)
    except Py4JJavaError as error:
        if "StackOverflowError" not in str(error):
            raise
        raise GraphError("must be nested less deeply: Spark cannot parse it") from None
    finally:
        PARSER_MEMORY.count(_jvm(spark), sql)
    called = check_tree(root, hidden)
    check_sizes(root, hidden)
    for name in sorted(called):
        _check_builtin(_jvm(spark), session.functionRegistry(), name)
    return parsed


def _jvm(spark: SparkSession) -> JVMView:
    jvm = spark._jvm
    assert jvm is not None, "a session without Connect has one"
    return jvm


def _check_builtin(jvm: JVMView, registry: Any, name: str) -> None:
    """Raise `GraphError` if a name does not mean a function of Spark in this session."""
    catalyst = jvm.org.apache.spark.sql.catalyst
    builtin = catalyst.analysis.FunctionRegistry.builtin()

    def identifier(place: tuple[str, str]) -> Any:
        return catalyst.FunctionIdentifier(name, *map(jvm.scala.Some, place))

    if builtin.listFunction().head().database().isEmpty():  # Spark 4.0 and 4.1
        key = catalyst.FunctionIdentifier(name)
    else:
        key = identifier(_BUILTIN)
        if registry.functionExists(identifier(_SESSION)):
            raise _temporary(name)
    own, there = builtin.lookupFunctionBuilder(key), registry.lookupFunctionBuilder(key)
    if own.isEmpty():
        raise GraphError(f"must call functions that this Spark has, and {name}() is not one of them")
    if there.isEmpty() or not there.get().equals(own.get()):
        raise _temporary(name)


def _temporary(name: str) -> GraphError:
    return GraphError(
        f"must call functions of Spark, and this session has another {name}(): drop that function, or give it "
        "another name"
    )


def can_check(spark: SparkSession) -> bool:
    """Return whether expressions can be checked in this session: not with Spark Connect."""
    try:
        return spark._jsparkSession is not None
    except (AttributeError, Py4JError):
        return False
