"""docs/cli.md: its commands run in a shell, in order, and print what the page shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from spark_queue.admin import doctor
from spark_queue.cli import app, params
from tests.command_line import Run, arguments
from tests.pages import blocks, calls, plain

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cli.md").read_text()


def without_changes(text: str) -> str:
    """Return a text without what changes in each run: ids, tags, moments, usage of Typer."""
    text = re.sub(r"^(Usage:|Try ).*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\b(\w+/)[0-9a-f]{6}/1\b", r"\1RUN/1", text)
    return plain(re.sub(r"\b[0-9a-f]{24}\b", "ID", text))


def test_the_page_runs_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(params.URL_VARIABLE, raising=False)
    start = f'spark-queue() {{ {" ".join(arguments())} "$@"; }}\n'
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran = 0
    for kind, text in blocks(PAGE):
        if kind != "console":
            continue
        for command, shown in calls(text):
            ran += 1
            if assigned := re.fullmatch(r"export (\w+)=(\S+)", command):
                monkeypatch.setenv(*assigned.groups())
                continue
            if command.startswith("spark-queue ") and not set(command) & set("|;>$"):
                args = shlex.split(command)[1:]
                done_here = CliRunner().invoke(app, args, prog_name="spark-queue")
                assert without_changes(done_here.output) == without_changes(shown), command
                continue
            done = subprocess.run(
                ["bash", "-c", f"{start}{command}"], text=True, timeout=300, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert without_changes(done.stdout) == without_changes(shown), command
    assert ran > 15


def test_the_page_names_every_command_and_code():
    pages = PAGE + (ROOT / "docs" / "operations.md").read_text() + (ROOT / "docs" / "exchanges.md").read_text()
    for names in (*params.SECTIONS.values(), params.RFQ_COMMANDS):
        for name in names:
            assert re.search(rf"spark-queue {name}\b|`{name}\b", pages), name
    for code in re.findall(r"\b(\d+):", params.EXIT_CODES):
        assert f"| {code} |" in PAGE


def test_the_page_names_all_that_the_doctor_checks(sqlite_url, url_of, tmp_path):
    Run("push", sqlite_url, "q", input="1")
    for url in (sqlite_url, url_of("mongodb"), url_of("redis")):
        for one in doctor.examine(url):
            assert re.search(
                rf"^(ok|FAILED|!) +{re.escape(one.what)} |`{re.escape(one.what)}`", PAGE, re.MULTILINE
            ), one.what
