"""The notebooks are the programs beside them, and run anywhere."""

from __future__ import annotations

import ast
import re

import nbformat
import pytest

from notebooks import build

NOTEBOOKS = pytest.mark.parametrize("program", build.programs(), ids=lambda path: path.stem)


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


@NOTEBOOKS
def test_asserts_are_in_the_last_cell_and_imports_in_the_first(program):
    first, *between, last = [cell.source for cell in build.notebook(program).cells if cell.cell_type == "code"]
    statements = [ast.parse(source).body for source in (first, *between)]
    assert all(isinstance(one, ast.Import | ast.ImportFrom) for one in statements[0]), "nothing but imports"
    nodes = [node for body in statements[1:] for one in body for node in ast.walk(one)]
    assert not any(isinstance(node, ast.Assert | ast.Import | ast.ImportFrom) for node in nodes)
    assert sum(isinstance(one, ast.Assert) for one in ast.parse(last).body) > 2, "the last cell checks the results"


@NOTEBOOKS
def test_what_is_shown_is_no_repr_of_python(program):
    found = nbformat.read(program.with_suffix(".ipynb"), as_version=4)
    outputs = [one for cell in found.cells if cell.cell_type == "code" for one in cell.outputs]
    assert not any(one.output_type == "error" for one in outputs)
    shown = [one.text if one.output_type == "stream" else one.data.get("text/plain", "") for one in outputs]
    plain = [text for one, text in zip(outputs, shown, strict=True) if set(one.get("data", {})) <= {"text/plain"}]
    for text in plain:
        assert not re.match(r"\s*[\[{(<']", text), text
    for one in outputs:
        drawn = one.get("data", {}).get("image/svg+xml", "")
        assert "Column&lt;" not in drawn and "&lt;lambda" not in drawn


@pytest.mark.full
@pytest.mark.timeout(900)
@NOTEBOOKS
def test_a_notebook_runs_and_what_it_asserts_holds(program, tmp_path):
    notebook = build.notebook(program)
    build.run(notebook, tmp_path)
    assert pictures(notebook)
    ran = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert ran == list(range(1, len(ran) + 1))
