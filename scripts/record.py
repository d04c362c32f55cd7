"""Record commands in a terminal as an asciinema cast: python scripts/record.py OUT.cast "COMMAND" ["COMMAND" ...]

Each command runs by itself in one folder, in a terminal of 100 columns and 30 lines. A pause longer than 0.4 seconds is
cut to that, and bars run ten times as fast, so that a recording of minutes plays in one. `asciinema play OUT.cast`
plays it.
"""

import argparse
import json
import os
import pty
import select
import struct
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

COLUMNS, LINES, LONGEST = 100, 30, 0.4
_KEY = 0.03  # seconds for each typed character
_BAR = 0.1  # of the time between two drawings of a bar is shown: a machine may be slow


def is_drawn_again(text: str) -> bool:
    """Tell whether a text draws one line anew, as a bar does."""
    return text.startswith("\r\x1b[2K") and "\n" not in text


class Cast:
    """Events of a recording, by the time at which they are shown."""

    def __init__(self) -> None:
        self.now, self.drawn, self.events = 0.0, 0.0, []

    def show(self, text: str, after: float) -> None:
        """Show a text so long after the last one. Of a bar that is drawn anew, one drawing a second is kept."""
        again = bool(self.events) and is_drawn_again(text) and is_drawn_again(self.events[-1][2])
        self.now += min(after, LONGEST) * (_BAR if again else 1.0)
        event = [round(self.now, 3), "o", text]
        if again and self.now - self.drawn < 1.0:
            self.events[-1] = event
            return
        self.drawn = self.now
        self.events.append(event)

    def type(self, command: str) -> None:
        self.show("$ ", LONGEST)
        for character in command:
            self.show(character, _KEY)
        self.show("\r\n", 0.3)

    def write(self, path: Path) -> None:
        header = {"version": 2, "width": COLUMNS, "height": LINES, "env": {"TERM": "xterm-256color"}}
        lines = [header, *self.events]
        path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def run(cast: Cast, command: str, folder: Path) -> int:
    """Run a command in a terminal of its own, and keep what it shows. Return its exit code."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
        os.execvp("bash", ["bash", "-c", command])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    last = time.monotonic()
    while True:
        select.select([terminal], [], [])
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        now = time.monotonic()
        cast.show(data.decode("utf-8", "replace"), now - last)
        last = now
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description="Record commands in a terminal as an asciinema cast.")
    parser.add_argument("out", type=Path)
    parser.add_argument("commands", nargs="+")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where the commands run")
    arguments = parser.parse_args()
    cast = Cast()
    for command in arguments.commands:
        cast.type(command)
        code = run(cast, command, arguments.folder)
        if code != 0:
            sys.exit(f"{command}: exit code {code}; nothing was written")
    cast.show("", LONGEST)
    cast.write(arguments.out)


if __name__ == "__main__":
    main()
