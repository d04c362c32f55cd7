"""Ways to train on planted numbers, and what is claimed of their exposure (Shi et al. 2022, Figures 2 to 4; 004)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import mean

from studies.runner.findings import ABOVE, MARGIN, Finding, paired
from studies.runner.grid import Keys
from studies.runner.study import Row
from studies.runner.twice import EPSILON
from studies.runner.users import texts_of

EXPOSED = 3.0
"""Bits: the paper calls a lower exposure not extractable (section A.5)."""

CHANCE = 1 / math.log(2)
"""Bits: the mean exposure of a random number is below this in any model that does not depend on it."""

NONE, DPSGD, CRT = "no DP", "DP-SGD", "CRT, missed"
REDACTED, REDACTED_MISSED = "redacted, caught", "redacted, missed"
JFT, JFT_MISSED, LIGHT = "JFT, caught", "JFT, missed", "JFT + light noise, missed"
TIMES = (1, 10, 100)
RECALLS = (1.0, 0.6, 0.4, 0.0)
TEN = 10  # numbers of Figure 4
CAUGHT, MISSED = "caught", "missed"  # fields of spans
_PRIVATE: Keys = {"privacy.epsilon": EPSILON, "privacy.delta": 1e-5}
_LIGHT: Keys = {
    "redacted.mode": "light-noise",
    "redacted.epsilon": EPSILON / 3,
    "redacted.missing_rate": [0.02, 0.05],  # of words: the numbers that are missed are 2.5% to 3.6% of all
}


def recall_field(share: float) -> str:
    """Return the field of spans of a detector that catches a share of the ten numbers."""
    return f"recall {share:g}"


def with_recall(recall: float) -> str:
    """Return the name of the arm whose detector catches a share of the ten numbers, which are all that is sensitive."""
    return f"JFT, {recall_field(recall)}"


ONLY_NONE, ONLY_DPSGD, ONLY_LIGHT = (
    f"{name}, only numbers sensitive" for name in ("no DP", "DP-SGD", "JFT + light noise")
)
_SAID: Mapping[str, str] = {
    DPSGD: "DP-SGD",
    CRT: "CRT, where the detector misses it",
    REDACTED: "redaction that catches it",
    JFT: "JFT, where the detector catches it",
    LIGHT: "JFT and light noise, where the detector misses it",
}
SHOWN: Mapping[str, str] = {
    ONLY_NONE: "no DP",
    ONLY_DPSGD: "DP-SGD",
    ONLY_LIGHT: f"JFT + light noise, {recall_field(0.4)}",
}
"""How arms of Figure 4 are called where it is said already that only the numbers are sensitive."""

ARMS: Mapping[str, Keys] = {
    NONE: {"privacy.mechanism": "none"},
    DPSGD: {"privacy.mechanism": "dp-sgd", **_PRIVATE},
    CRT: {"privacy.mechanism": "crt", "detector.spans": MISSED, **_PRIVATE},
    REDACTED: {"privacy.mechanism": "redacted", "detector.spans": CAUGHT},
    REDACTED_MISSED: {"privacy.mechanism": "redacted", "detector.spans": MISSED},
    JFT: {"privacy.mechanism": "selective", "detector.spans": CAUGHT, **_PRIVATE},
    JFT_MISSED: {"privacy.mechanism": "selective", "detector.spans": MISSED, **_PRIVATE},
    LIGHT: {"privacy.mechanism": "selective", "detector.spans": MISSED, **_PRIVATE, **_LIGHT},
}
ONLY: Mapping[str, Keys] = {
    ONLY_NONE: {"privacy.mechanism": "none"},
    ONLY_DPSGD: {"privacy.mechanism": "dp-sgd", **_PRIVATE},
    **{
        with_recall(recall): {
            "privacy.mechanism": "selective",
            "detector.spans": recall_field(recall),
            **_PRIVATE,
        }
        for recall in RECALLS
    },
    ONLY_LIGHT: {"privacy.mechanism": "selective", "detector.spans": recall_field(0.4), **_PRIVATE, **_LIGHT},
}


def last(rows: Sequence[Row], text: str, arm: str, times: int | None, column: str) -> dict[int, float]:
    """Return a column after the last step, by run key.

    Args:
        times: how often the numbers stand; None for those of Figure 4.
    """
    return looks(rows, text, arm, times, column)[-1]


def looks(rows: Sequence[Row], text: str, arm: str, times: int | None, column: str) -> list[dict[int, float]]:
    """Return a column by run key, at each step that was looked at; one without run keys if the arm was left out."""
    own = [row for row in rows if (row["text"], row["arm"]) == (text, arm) and times in (None, row["times"])]
    steps = sorted({row["step"] for row in own}) or [0]
    return [{row["key"]: row[column] for row in own if row["step"] == step} for step in steps]


def learnt(rows: Sequence[Row], text: str, arm: str, times: int | None) -> bool:
    """Tell whether this training without privacy exposes the numbers: if not, there is nothing to hide."""
    found = last(rows, text, arm, times, "exposure").values()
    return bool(found) and sum(found) / len(found) >= EXPOSED


def findings(rows: Sequence[Row]) -> list[Finding]:
    return [
        finding
        for text in texts_of(rows)
        for finding in (
            *_exposures(rows, text),
            *_missed(rows, text),
            *_later(rows, text),
            *_utility(rows, text),
            *_ten(rows, text),
        )
        if finding.values  # an arm may be left out
    ]


def _is_papers(rows: Sequence[Row], text: str) -> bool:
    """Tell whether the ten numbers stand once, as in Figure 4."""
    return {row["times"] for row in rows if (row["text"], row["arm"]) == (text, ONLY_NONE)} == {1}


def _exposures(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for times in TIMES[1:]:
        yield Finding(
            f"Without privacy, a number that stands {times} times is exposed ({text}).",
            "Figure 2",
            f"mean exposure at the end; from {EXPOSED:g} bits on counts as exposed",
            tuple(last(rows, text, NONE, times, "exposure").values()),
            low=EXPOSED,
            unit="bits",
            is_beyond=times != TIMES[1],
        )
        for arm in (DPSGD, CRT, REDACTED, JFT, LIGHT) if learnt(rows, text, NONE, times) else ():
            yield Finding(
                f"With {_SAID[arm]}, a number that stands {times} times is not exposed ({text}).",
                "Figure 2",
                f"mean exposure at the end; up to {EXPOSED:g} bits counts as not exposed",
                tuple(last(rows, text, arm, times, "exposure").values()),
                high=EXPOSED,
                family=f"{text}, {times} times",
                unit="bits",
                is_beyond=times != TIMES[1],
            )
    once = {arm: found for arm in ARMS if (found := last(rows, text, arm, 1, "exposure"))}
    if not once:
        return
    # The arm is chosen by its mean over run keys: the greatest of all arms at each key would lean upward.
    most = max(once, key=lambda arm: mean(once[arm].values()))
    yield Finding(
        f"A number that stands once is not exposed by any training ({text}).",
        "Figure 3",
        f"mean exposure at the end, in the training where it is greatest: {most}; up to {EXPOSED:g} bits counts as "
        "not exposed",
        tuple(once[most].values()),
        high=EXPOSED,
        unit="bits",
    )
    yield Finding(
        f"CRT learns a number that stands once, where the detector misses it ({text}).",
        "Figure 3",
        f"mean exposure at the end; a model that does not depend on random numbers has {CHANCE:.2f} bits at most",
        tuple(once.get(CRT, {}).values()),
        low=CHANCE,
        unit="bits",
        is_beyond=True,
    )


def _missed(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for times in (each for each in TIMES[1:] if learnt(rows, text, NONE, each)):
        for missed, caught in ((REDACTED_MISSED, REDACTED), (JFT_MISSED, JFT)):
            name = {REDACTED: "redaction", JFT: "JFT"}[caught]
            yield Finding(
                f"With {name}, numbers that the detector misses are exposed more than caught ones, {times} times "
                f"({text}).",
                "Figure 2",
                "mean exposure missed less caught, in bits",
                paired(*(last(rows, text, arm, times, "exposure") for arm in (missed, caught))),
                low=0.0,
                family=f"{text}, missed",
                unit="bits",
                is_beyond=times != TIMES[1],
            )
        yield Finding(
            f"Light noise exposes missed numbers less, {times} times ({text}).",
            "Figure 2",
            "mean exposure of JFT with light noise less that without, in bits; the detector misses the numbers",
            paired(*(last(rows, text, arm, times, "exposure") for arm in (LIGHT, JFT_MISSED))),
            high=0.0,
            family=f"{text}, light noise",
            unit="bits",
            is_beyond=times != TIMES[1],
        )


def _later(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    """Judge how exposure goes on, where training is looked at more than once."""
    for times in (each for each in TIMES[1:] if learnt(rows, text, NONE, each)):
        is_beyond = times != TIMES[1]
        bare = looks(rows, text, NONE, times, "exposure")
        yield Finding(
            f"Without privacy, a number that stands {times} times becomes more exposed as training goes on ({text}).",
            "section 6.4",
            "mean exposure at the end less that at the first look, in bits",
            paired(bare[-1], bare[0]) if len(bare) > 1 else (),
            low=ABOVE,
            family=f"{text}, later",
            unit="bits",
            is_beyond=is_beyond,
            is_late=True,
        )
        middle = looks(rows, text, LIGHT, times, "exposure")
        yield Finding(
            f"Redaction with light noise does not expose a number that the detector misses, {times} times ({text}).",
            "Figure 2",
            f"mean exposure of {LIGHT}, halfway, where its first phase ends; up to {EXPOSED:g} bits counts as not "
            "exposed",
            tuple(middle[len(middle) // 2 - 1].values()) if len(middle) % 2 == 0 else (),
            high=EXPOSED,
            family=f"{text}, light noise, first phase",
            unit="bits",
            is_beyond=is_beyond,
            is_late=True,
        )


def _utility(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    for one, other in ((JFT, DPSGD), (JFT, REDACTED), (LIGHT, DPSGD), (LIGHT, CRT), (ONLY_LIGHT, ONLY_DPSGD)):
        is_only = one == ONLY_LIGHT
        names = [SHOWN.get(arm, arm) for arm in (one, other)]
        yield Finding(
            f"{names[0]}: better perplexity than {names[1]}{', if ten numbers are all that is sensitive' * is_only} "
            f"({text}).",
            "Figure 4" if is_only else "Figure 2",
            f"loss at the end less that of {names[1]}",
            paired(*(last(rows, text, arm, None if is_only else 1, "loss") for arm in (one, other))),
            high=-MARGIN,
            family=f"{text}, utility",
            # The paper's redacted model has other steps: "similar exposure", not equal steps.
            is_beyond=other == REDACTED or (is_only and not _is_papers(rows, text)),
        )


def _ten(rows: Sequence[Row], text: str) -> Iterator[Finding]:
    """Judge Figure 4. The paper plants each of ten numbers once, and finds them at chance without privacy, too."""
    yield Finding(
        f"Without privacy, the ten numbers are exposed ({text}).",
        "Figure 4",
        f"mean exposure at the end; from {EXPOSED:g} bits on counts as exposed",
        tuple(last(rows, text, ONLY_NONE, None, "exposure").values()),
        low=EXPOSED,
        unit="bits",
        is_beyond=True,
    )
    if not learnt(rows, text, ONLY_NONE, None):
        return
    is_beyond = not _is_papers(rows, text)
    for high, low in pairwise(RECALLS):
        yield Finding(
            f"A detector of recall {high:g} exposes ten numbers less than one of {low:g} ({text}).",
            "Figure 4",
            "mean exposure with the higher recall less that with the lower, in bits",
            paired(*(last(rows, text, with_recall(each), None, "exposure") for each in (high, low))),
            high=0.0,
            family=f"{text}, recall",
            unit="bits",
            is_beyond=is_beyond,
        )
    yield Finding(
        f"JFT and light noise hide ten numbers of which the detector misses six ({text}).",
        "Figure 4",
        f"mean exposure at the end; up to {EXPOSED:g} bits counts as hidden",
        tuple(last(rows, text, ONLY_LIGHT, None, "exposure").values()),
        high=EXPOSED,
        unit="bits",
        is_beyond=is_beyond,
    )
    yield Finding(
        f"JFT and light noise expose the ten numbers as DP-SGD does ({text}).",
        "Figure 4",
        "mean exposure at the end less that of DP-SGD, in bits; up to one bit counts as alike, by our choice",
        paired(*(last(rows, text, arm, None, "exposure") for arm in (ONLY_LIGHT, ONLY_DPSGD))),
        low=-1.0,
        high=1.0,
        unit="bits",
        is_beyond=is_beyond,
        is_late=True,
    )
    yield Finding(
        f"If ten numbers are all that is sensitive, JFT comes close to training without privacy ({text}).",
        "Figure 4",
        "loss of JFT with recall 1 less that without privacy, at the end; up to 1% counts as close, by our choice",
        paired(*(last(rows, text, arm, None, "loss") for arm in (with_recall(1.0), ONLY_NONE))),
        high=MARGIN,
        is_beyond=is_beyond,
        is_late=True,
    )
