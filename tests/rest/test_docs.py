"""docs/rest.md: every command of the page runs, in order, and prints what the page shows."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spark_queue.events import Events
from spark_queue.rest.errors import STATUS_CODES
from tests.command_line import Run
from tests.pages import blocks, calls
from tests.serving import serving

PAGE = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()

DECLARED = "executors: [{source: s, type: t, function: 'builtins:print'}]"


def without_changes_of_a_run(text: str) -> str:
    """A text without what is made anew in each run: ids, receipts, moments."""
    text = re.sub(r"\b[0-9a-f]{24}\b", "ID", text)
    text = re.sub(r'"receipt":"[\w-]+"', '"receipt":"RECEIPT"', text)
    text = re.sub(r'"after":"[\w-]+"', '"after":"CURSOR"', text)
    text = re.sub(r'"next_t":(\d+|NUMBER)', '"next_t":NUMBER', text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", text).replace("\r", "").strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl: apt-get install curl")
def test_the_page_runs_as_it_is_written(tmp_path):
    url = f"sqlite:///{tmp_path}/queues.db"
    (tmp_path / "work.yaml").write_text(DECLARED)
    with Events(url, "events") as events:
        made = events.create("s", "t", "x")
    args = (
        "--url", f"local={url}", "--events", "local/events", "--conf", tmp_path / "work.yaml",
        "--run", "--checkpoint-root", tmp_path / "checkpoints",
    )  # fmt: skip
    ran = 0
    with serving(tmp_path, *args) as server:
        for kind, text in blocks(PAGE):
            for command, shown in calls(text) if kind == "console" else ():
                call = command.replace("http://127.0.0.1:3444", server.url).replace("6b033eb3e2fb91df13000006", made)
                done = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=300, check=False)
                assert without_changes_of_a_run(done.stdout) == without_changes_of_a_run(shown), command
                ran += 1
    assert ran > 12


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = [text for kind, text in blocks(PAGE) if kind == "python"]
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["app"].title == "spark_queue"


def test_the_page_has_every_option_and_status():
    shown = Run("serve", "--help").out
    for option in re.findall(r"--[a-z-]+", shown):
        assert option in PAGE or option == "--help", option
    for status in {*STATUS_CODES.values(), 401, 403}:
        assert re.search(rf"^\| [\d, ]*\b{status}\b", PAGE, re.MULTILINE), status
