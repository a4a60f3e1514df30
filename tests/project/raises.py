"""Find the errors that a function raises, and compare them with its docstring.

What counts is what the function's own body raises, and what the functions raise that it calls in its own module. An
error that the body catches again does not count.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import spark_queue.errors

#: Errors that end a generator or a program, or say that there is no such attribute: callers do not handle them.
SIGNALS = {"StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit", "KeyboardInterrupt", "Exit", "Abort",
           "AssertionError", "NotImplementedError", "AttributeError"}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


def ancestors(name: str) -> set[str]:
    """Return the names of the class `name` and of its bases, as far as they are known."""
    found = getattr(spark_queue.errors, name, None) or getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return {one.__name__ for one in found.__mro__ if one not in (object, BaseException)}
    return {name, "Exception"}


@dataclass
class Raised:
    """What one function raises: itself, and by calls in its module. Each with the names that its callers catch."""

    errors: set[str] = field(default_factory=set)
    calls: list[tuple[str, frozenset[str]]] = field(default_factory=list)


class Module:
    """The functions of a module, and what each raises."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._collect(self.tree, "")
        self._direct = {name: self._of(name, node) for name, node in self.functions.items()}
        self.raised = {name: set(one.errors) for name, one in self._direct.items()}
        grown = True
        while grown:
            grown = False
            for name, one in self._direct.items():
                for called, caught in one.calls:
                    new = {error for error in self.raised.get(called, ()) if not ancestors(error) & caught}
                    if new - self.raised[name]:
                        self.raised[name] |= new
                        grown = True

    def _collect(self, node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                self.functions[prefix + child.name] = child
                self._collect(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.ClassDef):
                self.classes[child.name] = child
                self._collect(child, f"{child.name}.")
            else:
                self._collect(child, prefix)

    def docstring(self, name: str) -> str | None:
        """Return the docstring of a function; for `__init__`, that of its class too."""
        own = ast.get_docstring(self.functions[name])
        owner, _, method = name.rpartition(".")
        if method in ("__init__", "__post_init__") and owner in self.classes:
            return "\n".join(filter(None, (own, ast.get_docstring(self.classes[owner])))) or None
        return own

    def _of(self, name: str, function: Function) -> Raised:
        found = Raised()
        for statement in function.body:
            self._visit(statement, name, frozenset(), found)
        return found

    def _visit(self, node: ast.AST, name: str, caught: frozenset[str], found: Raised) -> None:
        if isinstance(node, Function | ast.ClassDef | ast.Lambda):
            return
        if isinstance(node, ast.Try):
            stopped = [names(one.type) for one in node.handlers if not self._raises_again(one)]
            for statement in node.body:
                self._visit(statement, name, caught.union(*stopped), found)
            for part in (*node.handlers, *node.orelse, *node.finalbody):
                self._visit(part, name, caught, found)
            return
        if isinstance(node, ast.With):
            calls = [one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call)]
            quiet = [names(kind) for call in calls if last(call) == "suppress" for kind in call.args]
            for part in (*node.items, *node.body):
                self._visit(part, name, caught.union(*quiet), found)
            return
        if isinstance(node, ast.Raise) and node.exc is not None:
            found.errors |= {error for error in self._errors_of(node.exc, name) if not ancestors(error) & caught}
        if isinstance(node, ast.Call | ast.Attribute) and (called := self._called(node, name)):
            found.calls.append((called, caught))
        for child in ast.iter_child_nodes(node):
            self._visit(child, name, caught, found)

    @staticmethod
    def _raises_again(handler: ast.ExceptHandler) -> bool:
        return any(isinstance(node, ast.Raise) and node.exc is None for node in ast.walk(handler))

    def _errors_of(self, raised: ast.expr, name: str) -> set[str]:
        """Return the classes that a `raise` raises: a class, or the result of a function of this module."""
        call = raised.func if isinstance(raised, ast.Call) else raised
        if called := self._called(raised, name):
            if called.endswith("__init__"):
                return {last(call)}
            return {one for one in names(self.functions[called].returns) if is_error(one)}
        return {last(call)} if is_error(last(call)) else set()

    def _called(self, node: ast.AST, name: str) -> str | None:
        """Return the name of the function of this module that a call calls, or a property that is read."""
        owner = name.rpartition(".")[0]
        func = node.func if isinstance(node, ast.Call) else node
        if isinstance(func, ast.Name) and isinstance(node, ast.Call):
            for candidate in (f"{name}.{func.id}", func.id, f"{func.id}.__init__"):
                if candidate in self.functions:
                    return candidate
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
            candidate = f"{name.partition('.')[0]}.{func.attr}" if owner else ""
            if candidate in self.functions and (isinstance(node, ast.Call) or self._is_property(candidate)):
                return candidate
        return None

    def _is_property(self, name: str) -> bool:
        return any(last(one) in ("property", "cached_property") for one in self.functions[name].decorator_list)

    def _is_shown_to_users(self, name: str) -> bool:
        """Return whether a docstring is the help of a command, or the description of a path."""
        shown = {"command", "callback", "get", "post", "put", "patch", "delete", "exception_handler"}
        decorators = self.functions[name].decorator_list
        return any(isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in shown
                   for one in decorators)  # fmt: skip

    def unnamed(self) -> Iterator[tuple[int, str, str]]:
        """Yield each function whose docstring leaves out an error: its line, its name, and the error."""
        for name, errors in self.raised.items():
            text = self.docstring(name)
            if text is not None and not self._is_shown_to_users(name):
                for error in sorted(errors - SIGNALS):
                    known = ancestors(error) - {"Exception", "QueueError"} | {error}
                    if not any(one in text for one in known):
                        yield self.functions[name].lineno, name, error


def last(node: ast.AST) -> str:
    """Return the last name of `a.b.C`."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def names(node: ast.AST | None) -> set[str]:
    """Return the last names of a type, of a tuple of types, or of a union of types."""
    if node is None:
        return {"Exception"}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        node = ast.parse(node.value, mode="eval").body
    if isinstance(node, ast.Tuple):
        return {one for part in node.elts for one in names(part)}
    if isinstance(node, ast.BinOp):
        return names(node.left) | names(node.right)
    return {last(node)}


def is_error(name: str) -> bool:
    """Whether a name is that of an exception, by its class or by how it is written."""
    found = getattr(spark_queue.errors, name, None) or getattr(builtins, name, None)
    if found is not None:
        return isinstance(found, type) and issubclass(found, Exception)
    return name[:1].isupper() and name.endswith(("Error", "Exception", "Failed", "Failure"))


def unnamed_in(paths: list[Path]) -> list[str]:
    """Return a line for each error that a docstring leaves out."""
    return [
        f"{path}:{line}: {name} raises {error}, and its docstring does not say so"
        for path in paths
        for line, name, error in Module(path.read_text(encoding="utf-8")).unnamed()
    ]


if __name__ == "__main__":
    print(*unnamed_in([Path(path) for path in sys.argv[1:]]), sep="\n")
