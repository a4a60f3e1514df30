"""The rules of prose find what they are for. `make lint` runs them over the project."""

from __future__ import annotations

import pytest

from tests.project.prose import DATA, LONGEST_SENTENCE, lint, prose_of_python


def mistakes(path, text):
    path.write_text(text)
    return [line.rpartition("[")[2].rstrip("]") for line in lint(path)]


@pytest.mark.parametrize(
    "text",
    [
        "It was released by word.", "A client is told so.", "The note tells which.", "Whoever waits, wakes.",
        "It has so many rows.", "A tag that is none.", "It looked in vain.", "In other company.",
        "The dead leave notes.", "It is made by hand.", "A pause outlives it.", "Which one is meant?",
        "Then he reads.", "Somebody else has it.", "The lease is over.",
    ],
)  # fmt: skip
def test_a_private_word_is_found(tmp_path, text):
    assert mistakes(tmp_path / "page.md", f"# Title\n\n{text}\n") == ["ours.words"]


@pytest.mark.parametrize(
    "text",
    [
        "It waits. Who waits gets one.", "It waits. What is reserved stays reserved.",
        "It waits where there is none.", "The sum of what was taken.",
    ],
)  # fmt: skip
def test_a_turn_of_phrase_is_found(tmp_path, text):
    assert "ours.turns" in mistakes(tmp_path / "page.md", f"# Title\n\n{text}\n")


def test_a_long_sentence_is_found(tmp_path):
    words = "The store removes " + "one message and " * ((LONGEST_SENTENCE - 3) // 3) + "all of it"
    assert mistakes(tmp_path / "page.md", f"# Title\n\n{words}.\n") == ["ours.sentences"]
    assert mistakes(tmp_path / "page.md", f"# Title\n\n{words.replace('removes', 'removes:')}.\n") == []
    assert mistakes(tmp_path / "page.md", f"# Title\n\n| {words} | x |\n") == [], "a row of a table"


def test_code_is_no_prose(tmp_path):
    text = "# Title\n\nCall `told(by_word)`.\n\n```python\nwhoever = told\n```\n\n    make told\n\nSee [it](https://whoever.org/told).\n"
    assert mistakes(tmp_path / "page.md", text) == []


def test_docstrings_comments_and_messages_are_read(tmp_path):
    source = '''"""Whoever waits."""\n\n\ndef told() -> str:  # in vain\n    """Return it.\n\n    He waits.\n    """\n
    return f"queue {told} has so many rows"\n'''
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [line.split(":")[1] for line in lint(path)] == ["4", "1", "7", "10", "4"]


@pytest.mark.parametrize(
    "line",
    [
        "def test_nobody_waits(): ...",
        "class SoMany: ...",
        "told = 1",
        "def call(by_hand): ...",
        "for _tell in x: ...",
    ],
)
def test_a_private_word_in_a_name_is_found(tmp_path, line):
    assert mistakes(tmp_path / "module.py", line + "\n") == ["ours.names"]


def test_strings_of_tests_are_data_unless_an_assert_shows_them():
    source = 'text = "somebody waits"\nassert text, f"{text} or nobody waits"\n'
    assert [text for _, text, _ in prose_of_python(source, data=True)] == [" or nobody waits"]
    assert len([*prose_of_python(source)]) == 2
    assert DATA.name == "tests"


def test_comments_of_lua_are_read(tmp_path):
    path = tmp_path / "script.lua"
    path.write_text("local told = 1\n-- whoever waits\nreturn told\n")
    assert [line.split(":")[1] for line in lint(path)] == ["2"]


def test_the_rules_of_proselint_itself_are_on(tmp_path):
    assert mistakes(tmp_path / "page.md", "# Title\n\nIt is very fast.\n") == ["weasel_words.very"]
