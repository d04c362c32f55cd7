"""The audit of a run, saved in the run's folder."""

import json

from confide.auditing.attack import audit
from confide.auditing.options import Options
from confide.auditing.picture import audit_svg
from confide.auditing.result import Audit
from confide.runs.evidence import keep, model_id
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.release import check_release, restate
from confide.utils.console import Console
from confide.utils.files import write_text


def audit_run(run: Run, console: Console, options: Options | None = None) -> Audit:
    """Run all attacks on one run, as `audit` does; save the result in its folder and state it in its guarantee.

    Raises:
        InputError: see `audit`; or the released files are not the files that lie there.
    """
    with run.locked():
        job = Job.of(run, console)
        check_release(job)
        found = audit(job, options)
        facts = found.to_json()
        of_model = facts | {"model": model_id(run)}
        write_text(run.audit_path, json.dumps(of_model, indent=2) + "\n")
        keep(run, found.steps, found.evidence())
        restate(job, found.steps)
        picture = audit_svg(facts)
        if picture is not None:
            write_text(run.folder / "audit.svg", picture)
    return found
