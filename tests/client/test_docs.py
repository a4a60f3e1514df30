"""docs/client.md: its snippets run and print what their comments say; it names all of `Queue`."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

from spark_queue import Queue, errors
from tests.pages import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()


def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = "\n".join(text for kind, text in blocks(PAGE) if kind == "python")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/client.md", "exec"), {})
    expected = re.findall(r"print\(.*\)\s*# (.*)", program)
    assert len(expected) == 7
    lines = printed.getvalue().splitlines()
    assert [line for line in lines if line in expected] == expected
    assert len(lines) == len(expected) + 1, "the second try of the order has a line of its own"


def test_the_page_names_every_method_and_argument():
    reference = PAGE.partition("## Reference")[2]
    made = inspect.signature(Queue)
    for name, one in made.parameters.items():
        if one.kind is one.KEYWORD_ONLY:
            assert re.search(rf"^\| `{name}` \|", reference, re.MULTILINE), name
    public = {name: one for name, one in vars(Queue).items() if callable(one) and not name.startswith("_")}
    for name, one in public.items():
        (shown,) = re.findall(rf"`{name}\((.*?)\)`", reference)
        named = {part.partition("=")[0].strip("* ") for part in shown.split(",") if part}
        wanted = {p.name for p in inspect.signature(one).parameters.values() if p.name != "self"}
        assert {"messages" if one in ("done", "failed", "hopeless", "held") else one for one in wanted} == named, name


def test_the_page_names_the_errors_of_the_client():
    for name in re.findall(r"^\| `(\w+)` \| (?:for|if)", PAGE, re.MULTILINE):
        assert issubclass(getattr(errors, name), errors.QueueError)
