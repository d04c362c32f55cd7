"""Prepare the unit graphs of a config: make them once, keep them, and tell whether they are still those of its text."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.data.unit_graph import UnitGraph
from confide.privacy import mechanisms
from confide.privacy.mechanisms.held_out_rules import PATIENCE, check_choice
from confide.randomness.streams import RunKey
from confide.runs.data_source import differing, files_of, source_of
from confide.runs.given import Given
from confide.runs.kept_parts import keeper
from confide.runs.reading import Progress, Reading
from confide.runs.records import RECORD, check_files, read_record, write_record
from confide.utils.errors import InputError
from confide.utils.files import write_text
from confide.utils.histogram import histogram_svg
from confide.utils.workers import Crew

if TYPE_CHECKING:
    from confide.config.schema import Config
    from confide.distributed.ranks import Ranks
    from confide.runs.folder import Run
    from confide.utils.console import Console

PICTURE = "rows_per_unit.svg"  # a histogram of the training rows
LITTLE_LEFT = 0.6
"""Share of masked tokens above which the user is told.

The strictest level of Shi et al. 2022 ("Just Fine-tune Twice") masks 45%.
"""


@dataclass(frozen=True)
class Prepared:
    """Output of `prepare` on disk.

    Attributes:
        train, held_out: unit graphs; held_out is None without evaluation data.
        public: for a mechanism that redacts, the rows without any sensitive text: if parallel to the training
            rows, their redacted forms; if apart from them, the rows that had no finding. None if there is no
            second graph.
        facts: counts of every step, statistics, duplicates: the `--json` of `confide prepare`.
    """

    train: UnitGraph
    held_out: UnitGraph | None
    facts: dict[str, Any]
    public: UnitGraph | None = None

    @property
    def trained(self) -> tuple[UnitGraph, ...]:
        """All graphs that steps are taken on."""
        return (self.train,) if self.public is None else (self.train, self.public)

    def check_patience(self, config: "Config") -> None:
        """Refuse to end a run by held-out losses that may tell of what is protected.

        Raises:
            InputError: `train.patience` asks for it; the sentence says what to do.
        """
        if config.train.patience and self.held_out is not None:
            check_choice(config, self.held_out, self.trained, PATIENCE)

    @property
    def classes(self) -> int | None:
        """Number of classes of the training labels; None if there are none."""
        names = self.facts.get("classes")
        return len(names) if names is not None else None


def load(
    config: "Config", folder: Path, key: RunKey | None = None, given: Given | None = None
) -> Prepared | None:
    """Load the graphs in `folder`, if they were made from such a config.

    Args:
        key: that of `prepare`.

    Raises:
        InputError: something there is damaged, or was made under another key.
    """
    if not (folder / RECORD).is_file():
        return None
    record = read_record(folder, key)
    if record["source"] != source_of(config, given):
        return None
    facts = record["facts"]
    try:
        held_out = UnitGraph.open(folder / "eval") if facts["eval"] is not None else None
        public = UnitGraph.open(folder / "public") if mechanisms.needs_of(config).second_graph else None
        found = Prepared(UnitGraph.open(folder / "train"), held_out, facts, public)
    except InputError as error:
        raise InputError(f"{error} (remove {folder} first)") from None
    check_files(folder, record["digests"])
    return found


def outdated(config: "Config", folder: Path, key: RunKey | None = None) -> bool:
    """Return True if the files that the graphs in `folder` were made from have changed since."""
    return bool(read_record(folder, key)["files"] != files_of(config))


def prepare(
    config: "Config",
    tokenizer: Any,
    folder: Path,
    progress: Progress | None = None,
    key: RunKey | None = None,
    given: Given | None = None,
    crew: Crew | None = None,
) -> Prepared:
    """Read the text of a config into `folder/train`, `folder/eval` and, if rows are redacted, `folder/public`.

    Memory stays bounded. The sensitive passages that were found are kept next to `folder`, in `spans.db`.

    Args:
        crew: who does what can be done to each text by itself; the result is the same. By default this process, and
            all processors look for what is sensitive.

    Raises:
        InputError: the data are at fault; the sentence names file, row or key. Nothing is left behind but finished
            parts of a large source, see `kept_parts`; the next call goes on from there.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise InputError(
            f"run: {folder} holds files that confide did not write, and prepared data would replace them: choose "
            "another `run` folder, or move them away"
        )
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        files = files_of(
            config
        )  # before the text is read, so that a change while reading counts as a later change
        source = source_of(config, given)
        parts = folder.with_name(f".{folder.name}.parts")

        store = keeper(parts, source, files, key)
        made = Reading(config, tokenizer, progress, key, given, crew, store)
        facts = made.write(building, folder.with_name("spans.db"))
        write_record(building, {"source": source, "files": files, "facts": facts}, key)
        rows = UnitGraph.open(building / "train").rows_per_unit()
        write_text(building / PICTURE, histogram_svg(rows))
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
        shutil.rmtree(parts, ignore_errors=True)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    found = load(config, folder, key, given)
    assert found is not None
    return found


def prepared_data(
    run: "Run", tokenizer: Any, console: "Console", ranks: "Ranks | None" = None, crew: Crew | None = None
) -> Prepared:
    """Return the run's unit graphs; `crew` makes them if they do not exist, called by the first of several ranks."""
    key = run.data_key()
    try:
        found = load(run.config, run.data, key, run.given)
    except InputError:
        if run.begun:
            raise
        found = None  # nothing depends on these rows yet, so they are made again
    if ranks is not None and not ranks.first:
        if found is None:
            raise InputError(
                f"{run.data}: what the first rank prepared is not here; the ranks need one disk to share"
            )
        return found
    is_given = run.given.documents is not None  # nothing shows whether a program's documents have changed
    is_old = found is not None and not is_given and _has_changed(run, key)
    if found is not None and (run.begun or not (is_given or is_old)):
        if is_old:
            console.say(
                "warning: the files of the text have changed, moved or gone since this run began. It goes on with the "
                "rows that it began with: to leave somebody out, start a new run and delete this one (docs/leaving.md)"
            )
        return found
    if found is not None and not is_given:
        console.say("the text has changed since it was prepared: reading it again")
    elif run.begun and (run.data / "prepared.json").exists():
        keys = differing(read_record(run.data, key)["source"], source_of(run.config, run.given))
        raise InputError(
            f"{run.root} holds a run on other data (differs in {', '.join(keys)}): choose another `run` folder"
        )
    elif (run.data / "prepared.json").exists():
        console.say(
            f"what was prepared in {run.data} is of other settings of the data, or damaged: preparing again"
        )
    with console.track("reading documents") as track:
        made = prepare(run.config, tokenizer, run.data, track, key, run.given, crew)
    for note in made.facts["notes"]:
        console.say(note)
    share = made.facts.get("redaction", {}).get("share", 0.0)
    if share > LITTLE_LEFT:
        console.say(f"{share:.0%} of all tokens are masked: there is little left to learn from redacted rows")
    return made


def _has_changed(run: "Run", key: RunKey) -> bool:
    try:
        return outdated(run.config, run.data, key)
    except (InputError, OSError):
        if not run.begun:
            raise
        return False  # a run that has begun needs its source no more, which may be out of reach
