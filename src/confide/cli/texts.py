"""Print a corpus that was written, and what was measured of it."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confide.utils.console import Console
from confide.utils.rounding import percent_at_least, percent_at_most

if TYPE_CHECKING:
    from confide.auditing.extraction import Share
    from confide.synthesis.corpus import Corpus
    from confide.synthesis.leaks import Leaks
    from confide.synthesis.private_text import PrivateText
    from confide.synthesis.quality import Measure, Quality, Value
    from confide.synthesis.sampling import Asked


def wrote(run: Path, release: Path, asked: "Asked", found: "Corpus", quiet: bool) -> None:
    """Say what was written, and note it in the run folder, if there is one."""
    import hashlib

    from confide.synthesis.remembered import PUBLIC, remember

    if run.resolve() != release.resolve():
        facts = found.to_json() | {
            "asked": asdict(asked) | {"prompts": len([each for each in asked.prompts if each])}
        }
        try:
            remember(run, release, PUBLIC, hashlib.sha256(found.path.read_bytes()).hexdigest(), facts)
        except OSError as error:
            Console().say(
                f"{run}: cannot be written to, so the run does not remember this file ({error.strerror})"
            )
    if quiet:
        return
    print(f"{found.path}: {found.documents:,} documents of {found.drawn:,} samples")
    for why, number in sorted(found.left_out.items()):
        print(f"  left out, {why}: {number:,}")
    print(f"{found.card}: what protects them")


def examine(run: Path, out: Path, evaluate: bool, leaks: bool, held_out: str | None) -> "Examined":
    """Find the private text before anything is written, so that a wrong command costs nothing."""
    from confide.synthesis.private_text import PrivateText

    return Examined(run, out, PrivateText.of(run, held_out), evaluate, leaks)


class Examined:
    """A corpus that is held against private text."""

    def __init__(self, run: Path, out: Path, private: "PrivateText", evaluate: bool, leaks: bool):
        self._run, self._out, self._private = run, out, private
        self._evaluate, self._leaks = evaluate, leaks
        self._quality: Quality | None = None
        self._found: Leaks | None = None

    def looked(self, console: Console) -> dict[str, Any]:
        """Measure what was asked for, note it in the run folder, and return it."""
        from confide.data.conditions import Conditions
        from confide.synthesis.remembered import PRIVATE, PUBLIC, remember, remembered
        from confide.synthesis.written import Written

        release = self._private.released.folder
        conditions = Conditions.load(release)
        written = Written.of(self._out, conditions.fields if conditions is not None else ())
        is_own = written.digest in remembered(self._run, release, PUBLIC)
        if not is_own:
            console.say(f"{self._out}: this run does not remember writing it; it is looked at as it is")
        told: dict[str, Any] = {}
        if self._evaluate:
            from confide.synthesis.quality import evaluate

            self._quality = evaluate(written, self._private, console)
            told["evaluation"] = self._quality.to_json()
        if self._leaks:
            from confide.synthesis.leaks import attack

            self._found = attack(written, self._private, console, is_own)
            told["leaks"] = self._found.to_json()
        remember(self._run, release, PRIVATE, written.digest, told | {"path": str(self._out)})
        return told

    def show(self) -> None:
        if self._quality is not None:
            print("\n".join(["", *_of_quality(self._quality)]))
        if self._found is not None:
            print("\n".join(["", *_of_leaks(self._found)]))


def _of_quality(found: "Quality") -> Iterator[str]:
    some = f" (an even sample of {found.written:,})" if found.written > found.corpus else ""
    yield f"what {found.corpus:,} documents{some} are worth, beside {found.corpus:,} real ones that trained"
    yield (
        f"  both are held against {found.held_out:,} real texts of {found.units:,} units that did not train"
        + (f"; {found.dropped:,} texts were left out, since their unit trained" if found.dropped else "")
    )
    yield from _table("documents", "real text", [each for each in found.measures if each.kind == "texts"])
    yield from _table("released", "base", [each for each in found.measures if each.kind == "models"])
    for what, why in found.left_out.items():
        yield f"  not measured, {what}: {why}"
    yield "  Measured on private text. The guarantee does not cover these figures: keep them to yourselves."


def _table(first: str, second: str, measures: list["Measure"]) -> Iterator[str]:
    lines = [("", first, second)]
    lines += [(each.what, _value(each.of_corpus), _value(each.of_real)) for each in measures]
    width, next_width = (max(len(line[place]) for line in lines) for place in (0, 1))
    for what, one, other in lines:
        yield f"  {what:<{width}}  {one:<{next_width}}  {other}"


def _value(value: "Value") -> str:
    if value.low is None or value.high is None:
        return f"{value.value:.4g}"
    return f"{value.value:.4g} ({value.low:.4g} to {value.high:.4g})"


def _of_leaks(found: "Leaks") -> Iterator[str]:
    yield f"does the text leak? {found.documents:,} documents against real text"
    for what, runs in (
        ("all text that trained", found.all_trained),
        ("as much of it as was held out", found.trained),
        ("held-out text of other units", found.held_out),
    ):
        yield (
            f"  longest run of words in common with {what} ({runs.texts:,} texts): median {runs.median:g}, "
            f"longest {runs.most}"
        )
    if found.nearer is not None:
        yield (
            f"  of {found.differing:,} documents with a longer run on one side, on the side that trained: "
            f"{found.nearer.share:.1%} ({found.nearer.low:.1%} to {found.nearer.high:.1%}); 50% if nothing is told"
        )
    for each in found.longest[:3]:
        yield (
            f"  document {each.document:,} has a run of {each.words} words; units that wrote it: {each.trained:,} that "
            f"trained, {each.held_out:,} others"
        )
    if found.planted is not None:
        planted = found.planted
        yield (
            f"  canaries found: {planted.found} of {planted.planted} that were planted ({_limits(planted.rate)}), "
            f"{planted.found_absent} of {planted.absent} that were not ({_limits(planted.chance)})"
        )
    for name, rates in found.membership.items():
        area, low = rates.auroc, rates.true_positive_rate[0]
        yield (
            f"  units that trained, told by {name}: AUROC {area.value:.3f} ({area.low:.3f} to {area.high:.3f}; 0.5 is "
            f"a guess), {low.value:.1%} at 1% false ones ({low.low:.1%} to {low.high:.1%})"
        )
    for what, why in found.left_out.items():
        yield f"  left out, {what}: {why}"
    yield f"  {found.bound}"
    yield "  Intervals are of 95%. An attack that finds nothing proves nothing."
    yield "  Measured on private text. The guarantee does not cover these figures: keep them to yourselves."


def _limits(share: "Share") -> str:
    """Write an interval of a share, which rounding does not make smaller."""
    return f"{percent_at_least(share.low)} to {percent_at_most(share.high)}"
