"""Check prose: README, CHANGELOG, docs, docstrings, comments, messages and help texts; and the words of names.

The rules are checks of proselint: its own, and those below. `make lint` runs this. It prints a line for each mistake,
and fails if there is one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from proselint.checks import __register__ as checks_of_proselint
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult, Padding
from proselint.registry.checks.engine import Fancy
from proselint.registry.checks.types import ExistenceSimple
from proselint.tools import LintFile

ROOT = Path(__file__).parents[2]

#: Folders of Python files that are checked. Markdown cells of notebooks are comments there.
FOLDERS = ("spark_queue", "pyspark_queue", "bench", "jobs", "notebooks", "tests")

#: The folder in which strings are data, not messages. A string there is prose if it explains an `assert`.
DATA = ROOT / "tests"

#: The longest sentence, in words.
LONGEST_SENTENCE = 25

#: Words that a reader of the field does not expect, and what to write instead.
WORDS = {
    r"by word": "manually",
    r"tells?|telling|told": "returns, reports, says, shows; is told: gets an error, is notified",
    r"who(?:so)?ever": "a client, a query, a process",
    r"so many": "the number",
    r"that is none": "invalid",
    r"in vain": "without a result",
    r"company": "the other messages of the batch",
    r"the dead(?![- ]letter)": "processes that ended",
    r"by hand": "manually",
    r"outlives?|outlived": "survives",
    r"meant": "what it refers to",
    r"he|him|his|himself": "it, or: you",
    r"goes without saying": "is the default",
    r"as it comes": "by default",
    r"(?:some|any|no)body|someone|anyone|no one": "a client, no client, another process",
    r"is over": "times out, ends",
}

#: Names that users know, so they stay: a field of the report of `spark-queue doctor`.
PUBLIC = {("spark_queue/stores/types.py", "told")}

#: Turns of phrase that are read twice, and what to write instead.
TURNS = {
    r"(?<=[.:;!?][ \n])Who (?!else\b)\w+(?:s|ed)\b(?![^.]*\?)": "name the subject: a client, a query, you",
    r"(?<=[.;!?][ \n])What (?:is|was|are|were|it|they|a|an|the|has|have|this|that)\b[^.?!]*[.]": "name the thing",
    r"\bwhere (?:there is|there are|it is|it has|that is|this is|they are)\b": "if",
    r"\bof what\b": "of the messages, of the rows: name the thing",
}


def find_long_sentences(text: str, check: Check) -> Iterator[CheckResult]:
    """Find sentences of more than LONGEST_SENTENCE words."""
    for block in re.finditer(r"(?:[^\n]|\n(?!\s*(?:\n|[-*|#>] |\d+\. )))+", text):
        if block.group().lstrip().startswith(("|", "#")):
            continue
        for sentence in re.finditer(r"\S(?:[^.!?;:]|[.!?;:](?![\s)]))*", block.group()):
            words = re.findall(r"[A-Za-z][\w'’/-]*", sentence.group())
            if len(words) > LONGEST_SENTENCE:
                start = block.start() + sentence.start()
                yield CheckResult(check.path, f"{len(words)} words: split the sentence.", (start, start + 1), None)


def _check(name: str, pattern: str, instead: str) -> Check:
    message = f"'{{}}': {instead}."
    return Check(ExistenceSimple(pattern), Fancy(), f"ours.{name}", message, CheckFlags(allow_quotes=True))


OURS = (
    *(_check("words", Padding.WORDS_IN_TEXT.format(f"(?:{pattern})"), instead) for pattern, instead in WORDS.items()),
    *(_check("turns", pattern, instead) for pattern, instead in TURNS.items()),
)
SENTENCES = Check(find_long_sentences, path="ours.sentences", flags=CheckFlags(allow_quotes=True))

#: Checks of proselint that are about print, or that do not know rows of tables and words such as read-only.
LEFT_OUT = {"typography": False, "annotations": False, "lexical_illusions": False}
CHECKS = {
    "misc.phrasal_adjectives": False,
    **DEFAULT["checks"],
    **LEFT_OUT,
    "ours": True,
}  # the first that fits counts


def blank(text: str, pattern: str, flags: int = 0, by: str = " ") -> str:
    """Replace each match by `by`, repeated to the same length, so positions stay."""
    return re.sub(pattern, lambda match: re.sub(r"[^\n]", by, match.group()), text, flags=flags)


def prose_of_markdown(text: str) -> str:
    """Return the text of a page without code, addresses and HTML."""
    text = blank(text, r"^( *)(```|~~~).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
    text = blank(text, r"``.+?``|`[^`]*`", re.DOTALL, by="C")
    text = blank(text, r"\]\([^)]*\)")
    return blank(text, r"<[^>]*>|https?://\S+")


def names_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Yield each name that a file gives to a function, a class, an argument or a variable, with its line."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name


def refused_words(name: str) -> Iterator[str]:
    """Yield what to write instead of the words of a name that a reader of the field does not expect."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").strip().lower()
    for pattern, instead in WORDS.items():
        if re.search(rf"\b(?:{pattern})\b", text):
            yield instead


def prose_of_python(source: str, *, data: bool = False) -> Iterator[tuple[int, str, bool]]:
    """Yield each docstring, comment and message: its line, its text, and whether it is made of sentences.

    `data`: strings are data, unless an `assert` has them as its message.
    """
    nodes = list(ast.walk(ast.parse(source)))
    explained = {part for node in nodes if isinstance(node, ast.Assert) and node.msg for part in ast.walk(node.msg)}
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = {
        node.body[0].value
        for node in nodes
        if isinstance(node, documented) and ast.get_docstring(node) is not None and isinstance(node.body[0], ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node in docstrings:
                yield node.lineno, node.value, True
            elif (node in explained or not data) and re.search(r"[A-Za-z]{2}\S* [A-Za-z]", node.value):
                yield node.lineno, node.value, False
    comment: list[str] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            start = start or token.start[0]
            comment.append(re.sub(r"^#[: ]*(?:MAGIC(?: %md)?)? ?", "", token.string))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE) and comment:
            yield start, "\n".join(comment), True
            comment, start = [], 0


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def lint(path: Path) -> Iterator[str]:
    """Yield a line for each mistake of a file."""
    source = path.read_text(encoding="utf-8")
    parts: Iterable[tuple[int, str, bool]]
    if path.suffix == ".md":
        parts = [(1, blank(source, r"(?<=\n\n)(?: {4}\S.*\n)+"), True)]  # indented code
    elif path.suffix == ".lua":
        parts = [(1, re.sub(r"^(?![^\S\n]*--).*$|^[^\S\n]*--+", "", source, flags=re.MULTILINE), True)]
    else:
        parts = prose_of_python(source, data=path.is_relative_to(DATA))
        for line, name in names_of_python(source):
            known = (str(_shown(path)), name) in PUBLIC
            for instead in () if known else refused_words(name):
                yield f"{_shown(path)}:{line}: '{name}': {instead}. [ours.names]"
    for line, text, sentences in parts:
        text = text.encode(errors="replace").decode()  # half of a surrogate pair is no text
        for found in LintFile(str(path), prose_of_markdown(text)).lint(CONFIG):
            if sentences or found.check_result.check_path != SENTENCES.path:
                where = f"{_shown(path)}:{line + found.pos[0] - 1}"
                yield f"{where}: {' '.join(found.check_result.message.split())} [{found.check_result.check_path}]"


CONFIG = Config(max_errors=10_000, checks=CHECKS)
CheckRegistry().register_many((*checks_of_proselint, *OURS, SENTENCES))


def main(paths: list[str]) -> int:
    """Print the mistakes of these files, or of all, and return 1 if there are any."""
    files = [Path(path).resolve() for path in paths] or [
        ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *(file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))),
        *sorted((ROOT / "spark_queue").rglob("*.lua")),
    ]  # fmt: skip
    mistakes = [line for file in files for line in lint(file)]
    print(*mistakes, sep="\n")
    print(f"{len(mistakes)} mistakes in {len(files)} files", file=sys.stderr)
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
