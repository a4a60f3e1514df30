"""Pages of docs, as tests read them: what stands in their blocks, and what of it is the same in every run."""

from __future__ import annotations

import re


def blocks(page):
    """The blocks of a page: their kind, and their text."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def calls(text):
    """The commands of a console, each with what is printed after it."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)
    assert not parts[0], parts[0]
    return list(zip(parts[1::2], parts[2::2], strict=True))


def plain(text):
    """A text without what differs from run to run: moments, processes, paths, width of columns."""
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+Z)?", "MOMENT", text)
    text = re.sub(r"process \d+ on [\w.-]+", "process N on HOST", text)
    text = re.sub(r"sqlite:///\S*queues\.db", "URL", text)
    return re.sub(r"─+", "─", " ".join(text.split()))


def rows(page, heading):
    """Return the rows of the first table below a line that begins so."""
    below = page.read_text().split(f"\n{heading}", 1)[1].splitlines()
    start = next(n for n, line in enumerate(below) if line.startswith("|---"))
    table = []
    for line in below[start + 1 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table
