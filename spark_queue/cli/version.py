"""Versions of the program and the database, and shell completion."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import spark_queue
from spark_queue import admin
from spark_queue.cli.output import print_result
from spark_queue.cli.params import BaseCommand, Command, JsonFlag, MaybeUrl, app, argument


class Shell(StrEnum):
    """Shells with completion."""

    bash = "bash"
    zsh = "zsh"


#: Bash splits URLs at colons, so the script splits the line itself.
COMPLETION_SCRIPTS = {
    Shell.bash: """\
_spark_queue_completion() {
    local IFS=$' \\t\\n' line="${COMP_LINE:0:COMP_POINT}" words last
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    last="${words[-1]}"
    IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="${words[*]}" COMP_CWORD=$((${#words[@]} - 1)) \\
        _SPARK_QUEUE_COMPLETE=complete_bash "$1"))
    [[ "$last" == *:* ]] && COMPREPLY=("${COMPREPLY[@]#"${last%:*}:"}")
}
complete -o default -F _spark_queue_completion spark-queue
""",
    Shell.zsh: """\
#compdef spark-queue
_spark_queue_completion() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _SPARK_QUEUE_COMPLETE=complete_zsh spark-queue)
}
compdef _spark_queue_completion spark-queue
""",
}


@app.command(cls=Command)
def version(url: MaybeUrl = None, json: JsonFlag = False) -> None:
    """Show the versions of this program and of the database."""
    found = {"spark-queue": spark_queue.__version__}
    if url is not None:
        name, _, number = admin.doctor.server(url).partition(" ")
        found[name] = number
    print_result(found, *(f"{name} {number}" for name, number in found.items()), json=json)


@app.command(cls=BaseCommand)
def completions(shell: Annotated[Shell, argument("SHELL", "bash or zsh.")]) -> None:
    """Print the completion script of a shell.

    To use it: eval "$(spark-queue completions bash)".
    """
    print(COMPLETION_SCRIPTS[shell], end="")
