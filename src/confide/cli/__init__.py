"""The verbs, a file for each family. Importing one adds its verbs to `app`, in this order."""

import os

# Others' plugins of pydantic would see every value of a config, and looking for them takes time.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")

try:
    from confide.cli import running, secrets, redact, tune, audit, report, generate  # noqa: F401, I001
    from confide.cli import synthesize, export, account, study  # noqa: F401
    from confide.cli.base import app
    from confide.utils.console import guarded
except KeyboardInterrupt:  # Ctrl-C in the half second before a verb begins
    raise SystemExit(130) from None


def main() -> None:
    """Entry point of the command `confide`."""
    with guarded():
        app(prog_name="confide")
