"""What decides the content of prepared graphs: parts of the config, and the files that are read."""

import json
import os
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.config.schema import Detector, Policy
from confide.data.chat import template_text
from confide.data.readers.patterns import check_path, matching
from confide.data.readers.remote import remote_files
from confide.data.wording import is_worded, loss_on
from confide.privacy import mechanisms
from confide.runs.given import Given
from confide.sensitive.detectors import asked
from confide.utils.urls import is_url, path_of

if TYPE_CHECKING:
    from confide.config.schema import Config


def source_of(config: "Config", given: Given | None = None) -> str:
    """Return the part of a config, and of a calling program's objects, that decides the content of the graphs."""
    parts: dict[str, Any] = {"data": config.data.model_dump(mode="json"), "task": config.task}
    parts["tokenizer"] = config.tokenizer or config.model
    if is_worded(config):
        parts["wording"] = [loss_on(config), config.chat_template and template_text(config.chat_template)]
    if config.special_tokens:
        parts["special_tokens"] = config.special_tokens
    if config.detector != Policy():
        parts["detector"] = config.detector.model_dump(
            mode="json", exclude={"recall", "masks"}
        )  # a mere claim
        if config.detector.masks:
            parts["detector"]["masks"] = config.detector.masks
    needs = mechanisms.needs_of(config)
    if needs.secrets:
        parts["secrets"] = config.secrets.model_dump(mode="json", include=_SOURCES)
    if needs.redaction != "none":
        parts["redaction"] = [needs.redaction, config.redacted.span_tokens, marks_of(config)]
    if config.canaries.count:
        parts["canaries"] = config.canaries.model_dump(mode="json", exclude={"white_box", "guesses"})
        parts["canaries"] |= {"game": needs.game.name, "model": config.model}
    if config.privacy.histograms.of:  # then the graph tells where documents begin
        parts["documents"] = True
    if given is not None and (source := given.source()):
        parts["given"] = source
    return json.dumps(parts, sort_keys=True)


def differing(one: str, other: str) -> list[str]:
    """Return the keys in which two results of `source_of` differ, such as `data.unit`."""
    first, second = json.loads(one), json.loads(other)
    found = []
    for part in sorted({*first, *second}):
        here, there = first.get(part, ()), second.get(part, ())
        if isinstance(here, dict) and isinstance(there, dict):
            found += [
                f"{part}.{key}" for key in sorted({*here, *there}) if here.get(key, ()) != there.get(key, ())
            ]
        elif here != there:
            found.append(part)
    return found


# The keys of `secrets` that decide where secrets are found.
_SOURCES = {"words", "patterns", "detector", "column", "rows", "repository"}


def marks_of(config: "Config") -> str | None:
    """Return the sample that a person has screened, if the rows depend on it."""
    screened = mechanisms.needs_of(config).redaction == "beside" and config.redacted.mode == "screened"
    return config.redacted.marks if screened else None


def files_of(config: "Config") -> dict[str, list[list[int]]]:
    """Return size and time of last change of each local file that is read; for a folder, the sums over its files.

    Of a file behind a URL, the second number stands for its version, as far as the file system tells it.
    """
    found = {}
    sources: list[Any] = [config.data.train, config.data.eval, config.data.conditions]
    needs = mechanisms.needs_of(config)
    if needs.secrets:
        secrets = config.secrets
        sources += [secrets.words, secrets.rows, secrets.repository.root]
        sources += _files_of_detectors(secrets.detector)
    if needs.redaction != "none":
        sources += [config.detector.words, marks_of(config)]
        sources += _files_of_detectors(config.detector)
    for source in sources:
        if isinstance(source, str):
            check_path(source)
            if is_url(source):
                found[source] = [file.stamp() for file in remote_files(source)]
                continue
            path = Path(path_of(source)).expanduser()
            paths = [path] if path.exists() else matching(str(path)) if has_magic(str(path)) else []
            found[source] = [_stamp(path) for path in paths if path.exists()]
    return found


def _files_of_detectors(section: Detector) -> list[str]:
    return [file for each, settings in asked(section) for file in each.files(settings)]


def _stamp(path: Path) -> list[int]:
    if not path.is_dir():
        facts = path.stat()
        return [facts.st_size, facts.st_mtime_ns]
    parts = [_stamp(Path(entry.path)) for entry in os.scandir(path) if not entry.is_symlink()]
    return [sum(size for size, _ in parts), sum(changed for _, changed in parts)]
