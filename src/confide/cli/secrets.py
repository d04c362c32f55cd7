"""Define `confide secrets`: which text is secret, and the program that protects it."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from confide.cli.base import (
    Cluster,
    ConfigPath,
    Json,
    Overrides,
    Processes,
    app,
    crew_of,
    print_json,
    run_of,
    verb,
)
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.runs.folder import Run

secrets_app = typer.Typer(
    name="secrets",
    help="Find secrets, and solve the program that weighs rows.",
    no_args_is_help=True,
)
app.add_typer(secrets_app)


@secrets_app.command("tag")
@verb
def tag(
    config: ConfigPath,
    overrides: Overrides = None,
    processes: Processes = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Find the secrets: counts by class, masked examples.

    Example: confide secrets tag mail.yaml --processes 8
    """
    run, crew = _secret_run(config, overrides), crew_of(processes, cluster)  # before torch is imported

    from confide.cli import secret_report as secrecy
    from confide.cli import show
    from confide.models import loading as models
    from confide.runs.preparation import prepared_data
    from confide.utils.console import Console

    with run.locked():
        facts = prepared_data(run, models.load_tokenizer(run.config), Console(), crew=crew).facts
    if as_json:
        print_json(facts["secrets"])
        return
    show.secrets(facts["secrets"], secrecy.examples(run.config))


@secrets_app.command("solve")
@verb
def solve(config: ConfigPath, overrides: Overrides = None, as_json: Json = False) -> None:
    """Solve the linear program; show rows, noise, secrets.

    The noise is shown for each accountant.

    Example: confide secrets solve mail.yaml
    """
    from confide.cli import secret_report as secrecy
    from confide.cli import show
    from confide.models import loading as models
    from confide.privacy import mechanisms
    from confide.privacy.mechanisms.secret import SecretProtection
    from confide.runs.preparation import prepared_data
    from confide.utils.console import Console

    run = _secret_run(config, overrides)
    mechanism = mechanisms.build(run.config)
    assert isinstance(mechanism, SecretProtection)
    with run.locked():
        shape = prepared_data(run, models.load_tokenizer(run.config), Console()).train.shape()
        found = secrecy.solution(mechanism, shape)
        table = run.root / "secrets.csv"
        secrecy.write_table(mechanism, shape, found["noise_multiplier"][mechanism.accountant], table)
    if as_json:
        print_json(found)
        return
    show.solution(found)
    print(f"every secret, by id: {table} (private)")


def _secret_run(path: Path, overrides: list[str] | None) -> "Run":
    from confide.privacy import mechanisms

    run = run_of(path, overrides)
    if not mechanisms.needs_of(run.config).secrets:
        raise InputError(
            f"{path}: privacy.mechanism is {run.config.privacy.mechanism}; `confide secrets` is for mechanism: secret"
        )
    return run
