"""Build the notebooks `*.ipynb` from the programs `*.py` of this folder, and run them.

`make notebooks` runs it. The programs are notebooks in the source format of Databricks. Edit only
them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode, v4
from traitlets.config import Config

FOLDER = Path(__file__).resolve().parent

#: The first line of a Databricks notebook, the separator of its cells, and the prefix of lines that
#: are not Python.
HEAD, BETWEEN, MAGIC = "# Databricks notebook source\n", "# COMMAND ----------", "# MAGIC"

#: Maximum seconds per cell.
TIMEOUT = 240

#: Maximum bytes of a notebook.
LARGEST = 300_000


def programs() -> list[Path]:
    """Return the programs that are notebooks."""
    return sorted(path for path in FOLDER.glob("*.py") if path.read_text().startswith(HEAD))


def notebook(program: Path) -> NotebookNode:
    """Return the notebook of a program, without output."""
    cells = []
    for number, text in enumerate(program.read_text().removeprefix(HEAD).split(BETWEEN), 1):
        source, ident = text.strip(), f"cell-{number:02}"
        if source.startswith(f"{MAGIC} %md"):
            lines = [line.removeprefix(MAGIC).removeprefix(" ") for line in source.splitlines()]
            cells.append(v4.new_markdown_cell("\n".join(lines).removeprefix("%md").strip(), id=ident))
        else:
            cells.append(v4.new_code_cell(source, id=ident))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def run(made: NotebookNode, folder: Path) -> None:
    """Run a notebook in a folder, with a kernel of its own, and store the output in the notebook.

    Raises `nbclient.exceptions.CellExecutionError`.
    """
    env = {name: value for name, value in os.environ.items() if name not in ("MPLBACKEND", "NOTEBOOK_URL")}
    path = os.pathsep.join(filter(None, [str(FOLDER.parent), env.get("PYTHONPATH")]))
    env |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "NOTEBOOK_FOLDER": str(folder)}
    env |= {
        "TMPDIR": str(folder),
        "IPYTHONDIR": str(folder / "ipython"),
    }  # leave no files, and use no settings of the user
    resources = {"metadata": {"path": str(folder)}}
    # With TCP, another program may take the chosen port. The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
        config = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/ipc"})
        client = NotebookClient(made, config=config, timeout=TIMEOUT, resources=resources, record_timing=False)
        client.execute(env=env)


def tidy(made: NotebookNode) -> None:
    """Remove output that differs between machines: Spark's log and facts of the kernel."""
    made.metadata.language_info = {"name": "python"}
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.metadata = {}
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]


def main() -> int:
    """Build all notebooks. Return the exit code."""
    for program in programs():
        made = notebook(program)
        with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
            run(made, Path(folder))
        tidy(made)
        text = nbformat.writes(made) + "\n"
        if found := [path for path in (folder, str(FOLDER.parent)) if path in text]:
            sys.exit(f"{program.name}: the output contains the path {found[0]} of this machine; remove it")
        if (size := len(text.encode())) > LARGEST:
            sys.exit(f"{program.name}: the notebook has {size:,} bytes, more than {LARGEST:,}; show less")
        program.with_suffix(".ipynb").write_text(text)
        print(f"{program.stem}.ipynb: {size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
