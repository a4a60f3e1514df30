"""The notebooks are the programs beside them, and run anywhere."""

from __future__ import annotations

import nbformat
import pytest

from notebooks import build

NOTEBOOKS = pytest.mark.parametrize("program", build.programs(), ids=lambda path: path.stem)

#: The one that `make test` runs, too: it takes the least time.
QUICKEST = "events_and_executors"


def pictures(notebook):
    return [
        one
        for cell in notebook.cells
        if cell.cell_type == "code"
        for one in cell.outputs
        if "image/png" in one.get("data", {})
    ]


def test_there_are_notebooks():
    assert [path.stem for path in build.programs()] == [
        "events_and_executors",
        "exactly_once_effects",
        "exchange_graph",
        "first_steps",
    ]


@NOTEBOOKS
def test_a_notebook_has_the_cells_of_its_program(program):
    wanted, found = build.notebook(program), nbformat.read(program.with_suffix(".ipynb"), as_version=4)
    cells = [[(cell.id, cell.cell_type, cell.source) for cell in one.cells] for one in (wanted, found)]
    assert cells[0] == cells[1], "type: make notebooks"
    assert wanted.metadata == found.metadata
    assert pictures(found), "it shows nothing; type: make notebooks"
    assert program.with_suffix(".ipynb").stat().st_size <= build.LARGEST


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, marks=() if one.stem == QUICKEST else pytest.mark.full, id=one.stem)
        for one in build.programs()
    ],
)
def test_a_notebook_runs_and_what_it_asserts_holds(program, tmp_path):
    notebook = build.notebook(program)
    build.run(notebook, tmp_path)
    assert pictures(notebook)
    ran = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert ran == list(range(1, len(ran) + 1))
