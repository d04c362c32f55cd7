"""Write docs/cli.md from the commands' own help: `python -m scripts.command_reference > docs/cli.md`."""

import re
from collections.abc import Iterator
from typing import Any

from studies.__main__ import app as studies
from typer.main import get_command

from confide.cli.base import app

_BEFORE = """\
# Commands

Made by `python -m scripts.command_reference > docs/cli.md`; do not edit by hand.

`CONFIG` is a config file or a run folder, `RUN` a run folder. Keys of the [config](config.md) can be replaced behind
`CONFIG`: `confide train mail.yaml privacy.epsilon=3 run=runs/mail-3`.

| exit code | means |
|---|---|
| 0 | done |
| 1 | a check failed |
| 2 | the input is at fault; the message names the key, the file or the row: [error messages](troubleshooting.md) |
| 3 | a fault of confide |
| 130 | stopped by Ctrl-C; the same command goes on |
| 141 | whoever read the output ended first, as `head` does in a pipe |

With `--json`, standard output tells what went wrong, too: `{"error": {"exit_code": 2, "message": "..."}}`. A check that
failed prints its own document, if it has one. An unknown command or option is told on standard error alone.
"""


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield the words, the command and its context, of each command that does something."""
    root = get_command(app)
    yield from _below(root, root.context_class(root, info_name="confide"), "confide")


def _below(group: Any, context: Any, words: str) -> Iterator[tuple[str, Any, Any]]:
    for name, command in group.commands.items():
        inside = command.context_class(command, info_name=name, parent=context)
        if hasattr(command, "commands"):
            yield from _below(command, inside, f"{words} {name}")
        elif name == "study":  # its options are those of the repository's program
            of_studies = get_command(studies)
            yield (
                f"{words} {name}",
                of_studies,
                of_studies.context_class(of_studies, info_name=f"{words} {name}"),
            )
        else:
            yield f"{words} {name}", command, inside


def reference() -> str:
    """Return the page."""
    parts = [_BEFORE]
    for words, command, context in commands():
        context.max_content_width = context.terminal_width = 100
        said = command.get_help(context)
        parts.append(f"## {words}\n\n```\n{re.sub(r'[ ]+$', '', said, flags=re.MULTILINE).strip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(reference(), end="")
