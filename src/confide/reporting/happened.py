"""Say of each thing that a claim does not cover whether it happened in this run, as far as the run knows.

The answers may stand on the page that is handed on: they tell what was done, and no figure that was measured on private
text. Where a run does not know, the answer says so, and it never says "no" for want of a record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confide.config.schema import Config
from confide.runs.folder import Run
from confide.training.trackers import told_private

UNKNOWN = "The run cannot know."
_ALWAYS = "Yes, as in every run of this kind."


@dataclass(frozen=True)
class Course:
    """What a run knows of its own course.

    Attributes:
        config: its settings.
        twin: a non-private twin was trained in its folder.
        told: the trackers that were told private measurements; "" if there are none.
        audited: `confide audit` has attacked this model.
    """

    config: Config
    twin: bool
    told: str
    audited: bool

    @classmethod
    def of(cls, run: Run, audited: bool) -> "Course":
        """Read it from the run's folder."""
        twin = (run.root / "twin" / run.metrics_path.name).is_file()
        return cls(run.config, twin, told_private(run.folder), audited)

    def here(self, item: str) -> str:
        """Say in short sentences whether something that is not covered happened in this run."""
        found = next((answer for start, answer in _ANSWERS.items() if item.startswith(start)), None)
        return UNKNOWN if found is None else found(self)

    def unit_fields(self) -> str:
        """Say which field of the text names a unit; "" if none does."""
        unit = self.config.data.unit
        if not unit:
            return ""
        names = [unit] if isinstance(unit, str) else unit
        return f"Each value of {' or '.join(map(repr, names))} in the text is one."

    def stays(self, releases: bool) -> str:
        """Say what of the run's folder must not be handed on.

        Args:
            releases: the model itself may be handed on.
        """
        start = (
            "Hand on nothing but the folder release, and report.html. All else in the" if releases else "The"
        )
        twin = " Among it is a model without protection, in the folder twin." if self.twin else ""
        return (
            f"{start} run's folder holds the text, names or the key.{twin} Keep it as you keep the text, or "
            "delete it."
        )

    def besides(self) -> list[str]:
        """Say what else an owner of the text asks of a run."""
        count = self.config.canaries.count
        planted = (
            f"{count:,} made-up units were prepared for an audit. A coin for each decided whether the released model "
            "was trained on it."
        )
        return [
            planted if count else "No made-up units were planted in the text.",
            "The model was attacked by confide audit. Line 12 says what that showed."
            if self.audited
            else "The model was not attacked by confide audit.",
        ]


def _pretraining(course: Course) -> str:
    model = course.config.model
    if model == "bundled":
        return "Yes. The bundled model has learnt articles of Wikipedia, which are public."
    if model.endswith(".json"):
        return "No. The model began with random weights."
    return "Yes, if the base model was pretrained. The run cannot know on which text."


def _tokenizer(course: Course) -> str:
    if course.config.model == "bundled" and course.config.tokenizer in (None, "bundled"):
        return "It is that of the bundled model, made of public text."
    return "It was taken as it is. The run cannot know of which text it was made."


def _evaluation(course: Course) -> str:
    held_out = (
        "Losses on held-out text were measured, too."
        if course.config.data.holds_out
        else "No text was held out to measure on."
    )
    return f"Yes. The losses of training steps lie in the run folder. {held_out}"


def _logs(course: Course) -> str:
    told = f" Measurements on private text were sent to {course.told}." if course.told else ""
    return f"Yes. They lie in the run folder.{told} The run cannot know who saw its screen."


def _statistics(course: Course) -> str:
    chosen = (
        " The bound on rows of a unit was chosen by their median."
        if course.config.privacy.rows_per_unit == "median"
        else " The run cannot know whether settings were chosen by them."
    )
    counted = (
        " Those that are released with the model have noise, and the claim covers them."
        if course.config.privacy.histograms.of
        else ""
    )
    return f"Yes. Units, rows and their lengths were counted.{counted}{chosen}"


def _screening(course: Course) -> str:
    if course.config.redacted.mode == "screened":
        return "Yes. A person read and marked a sample of the documents."
    return "Not as a part of this run. It cannot know who read the text before."


def _same_words(course: Course) -> str:
    data = course.config.data
    quotes = "Quoted replies were removed. " if data.strip_quotes else ""
    if not data.duplicates:
        return f"{quotes}The run did not look for them (data.duplicates: false)."
    return (
        f"{quotes}The run looked for them before training. What it found stands on the page for those who "
        "may see the text."
    )


def _twin(course: Course) -> str:
    return (
        "Yes. One was trained, and lies in the run folder. Never hand it on."
        if course.twin
        else "None lies in the run folder."
    )


def _always(course: Course) -> str:
    return _ALWAYS


def _unknown(course: Course) -> str:
    return UNKNOWN


_ANSWERS: Mapping[str, Callable[[Course], str]] = {
    "what the base model learnt": _pretraining,
    "what an earlier run taught": lambda _: (
        "Yes. The run cannot know whether it read text of the same people."
    ),
    "the tokenizer": _tokenizer,
    "evaluation: losses": _evaluation,
    "logs, progress output": _logs,
    "statistics of the data": _statistics,
    "the tuning of hyper-parameters on private rows:": lambda _: "Yes. The search is recorded.",
    "the tuning of hyper-parameters on private rows": (
        lambda _: (
            "No search is recorded here. The run cannot know whether other runs were tried on the same text."
        )
    ),
    "the choice of what the sweep searched": lambda _: (
        "Yes, a sweep was made. The run cannot know of tuning outside."
    ),
    "the held-out units, by whose loss": lambda _: "Yes. The best trial was chosen so.",
    "manual screening": _screening,
    "the same words in other units' rows": _same_words,
    "a non-private twin": _twin,
    "the held-out text of data.eval": lambda _: (
        "Yes. The run was told to look at these losses (train.patience)."
    ),
    "losses on the units' own held-out rows": lambda _: (
        "Yes, such losses were measured. They are for whoever may see the text."
    ),
    "whoever wrote several documents": lambda _: (
        "It can be: the config keeps such documents (data.without_unit: own)."
    ),
    "the other sides of a conversation": _always,
    "losses and other measurements made from private rows: they were sent": lambda _: "Yes.",
    "the losses of training rows, which Trainer logs": lambda _: "Yes.",
    "how long steps took": lambda _: "Yes.",
    "figures made from eval_dataset": lambda _: "Yes. The run cannot know what was decided from them.",
    "a row's loss that hangs on other rows": lambda _: (
        "The run tried the loss on some rows. It cannot know of others."
    ),
    "what a mask tells by itself": _always,
    "what the rest of a row": _always,
    "a comparison with other characters": _always,
    "what the size of the noise tells": _always,
    "that a secret exists": _always,
    "sensitive text that the detector misses": _unknown,
    "sensitive text of the screened documents": _unknown,
    "a secret that the detector misses": _unknown,
    "a secret that stands in several rows": _unknown,
    "what tells of a secret without being found": _unknown,
    "a guesser whose chance": _unknown,
    "the choice of tau": _unknown,
    "rows that the model which gives perplexities": _unknown,
}
"""By the beginning of what is not covered; the first that fits is taken."""
