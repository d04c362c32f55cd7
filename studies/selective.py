"""Selective privacy at small scale (Shi et al. 2022, Tables 2, 3, 4, 6, 8): redaction, a second phase, screening.

Corpora: WikiText-2 and the Schema-Guided Dialogues (in place of ABCD) for a causal model, SST-2, CoLA and RTE for a
classifier. The causal base is stories260K, which has read children's stories alone; the classifier is shaped as
RoBERTa and first pretrained here, as a masked LM on WikiText-2. The person who screens is played by the slot
annotations of the dialogues. Run keys are published, so that the numbers can be repeated: every guarantee says so.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from confide.config.loading import check
from confide.config.schema import Config
from confide.data.documents import training_documents
from confide.privacy import mechanisms
from confide.privacy.mechanisms.statement import calibrate
from confide.runs.folder import Run
from confide.runs.loop import Outcome, fine_tune
from confide.runs.preparation import load
from confide.sensitive.detectors import Span
from confide.sensitive.redaction.policy import Policy
from confide.sensitive.redaction.screening import Marks, sample
from confide.utils.console import Console
from confide.utils.files import write_text
from confide.utils.rounding import at_most
from studies import corpora, main

EPSILON = 3.0
STEPS = 40  # of every run; one in two phases takes half of them in each
LEVELS = ("low-entity", "high-entity", "low-contextual", "high-contextual")
SCREENED = "high-entity"  # the level of Tables 3, 4, 6 and 8
FEW = 0.01  # the share of documents in Table 4, and in Table 8; 0.001 in the paper, of larger corpora
PIPELINE = (
    "CONFIDE_PIPELINE"  # environment variable that names the spaCy pipeline, if it is not en_core_web_sm
)


@dataclass(frozen=True)
class Row:
    """One line of a table.

    share: of tokens that are masked; epsilon: as claimed, or at both ends of a missing rate and of a row with a miss;
    paper: epsilon under zero-out, as 004 counts it.
    """

    corpus: str
    method: str
    level: str
    share: float | None
    epsilon: tuple[float, ...]
    paper: float | None
    score: float
    is_accuracy: bool


@dataclass(frozen=True)
class Corpus:
    """One corpus. `raw`: what the configs of all its runs share; `tokens`: special ones, beside the mask."""

    name: str
    raw: dict[str, Any]
    folder: Path
    console: Console
    documents: int
    tokens: tuple[str, ...] = ()

    @property
    def is_causal(self) -> bool:
        return "task" not in self.raw

    def config(self, name: str, **sections: Any) -> Config:
        """A run of the corpus; sections are merged into its own."""
        raw = dict(self.raw)
        for key, value in sections.items():
            raw[key] = raw.get(key, {}) | value if isinstance(value, dict) else value
        raw["privacy"] = raw.get("privacy", {}) | {"published_key": f"study selective {self.name} {name}"}
        raw["run"] = str(self.folder / self.name / name)
        return check(raw, f"study selective, {self.name}, {name}")

    def train(self, method: str, config: Config) -> tuple[Row, Outcome]:
        """Train, or resume, and score: perplexity, or accuracy in percent, of the held-out rows."""
        self.console.say(f"{self.name}: {method} {config.detector.level or ''}")
        outcome = fine_tune(Run(config), self.console)
        if not outcome.finished:
            raise KeyboardInterrupt
        assert outcome.final
        prepared, guarantee = load(config, Run(config).data, Run(config).data_key()), outcome.guarantee
        assert prepared is not None
        redaction = prepared.facts.get("redaction")
        protects = guarantee.notion != "none"
        row = Row(
            self.name,
            method,
            config.detector.level or "",
            None if redaction is None else float(redaction["share"]),
            tuple(value for _, value in guarantee.epsilons) or ((guarantee.epsilon,) if protects else ()),
            _in_the_paper(config, outcome) if protects else None,
            self.score(outcome.final),
            not self.is_causal,
        )
        return row, outcome

    def score(self, found: dict[str, Any]) -> float:
        return float(found["perplexity"] if self.is_causal else 100 * found["accuracy"])

    def twice(self, method: str, level: str = SCREENED, steps: int = STEPS, **sections: Any) -> Iterator[Row]:
        """Fine-tuned twice: the model after phase 1, which is the redacted one, and after both."""
        redacted = {"steps": steps // 2, **sections.pop("redacted", {})}
        settings = self.config(
            f"{method} {level}".replace(" ", "-"),
            detector=detector(level, None if redacted.get("mode") == "light-noise" else 1.0),
            special_tokens=list(self.tokens),
            privacy={"mechanism": "selective", "epsilon": EPSILON},
            redacted=redacted,
            train={"steps": steps // 2, **sections.pop("train", {})},
            **sections,
        )
        row, outcome = self.train(method, settings)
        if redacted.get("mode") != "light-noise":
            first = self.score(outcome.after["redacted"])
            yield replace(
                row, method=method.replace("JFT", "redacted"), epsilon=(0.0,), paper=0.0, score=first
            )
        yield row


def detector(level: str, recall: float | None) -> dict[str, Any]:
    return {"level": level, "pipeline": os.environ.get(PIPELINE, "en_core_web_sm"), "recall": recall}


def _in_the_paper(config: Config, outcome: Outcome) -> float | None:
    """Epsilon of the same run under zero-out, which 004 takes for its own adjacency."""
    guarantee, prepared = outcome.guarantee, load(config, Run(config).data, Run(config).data_key())
    assert prepared is not None
    if guarantee.adjacency == "zero-out" or guarantee.epsilon == 0:
        return guarantee.epsilon
    if config.redacted.mode == "light-noise":  # calibrated otherwise there
        return None
    changed = config.privacy.model_copy(update={"adjacency": "zero-out"})
    mechanism = mechanisms.build(config.model_copy(update={"privacy": changed}))
    noise, delta = guarantee.noise_multiplier, guarantee.delta
    return calibrate(mechanism, prepared.train.shape(), None, noise, delta).curve().epsilon(delta)


# the corpora ---------------------------------------------------------------------------------------------------
def _dialogues(data: Path, folder: Path, console: Console) -> Corpus:
    text = corpora.written(corpora.dialogues(data, "train"), folder / "data/dialogues-train.jsonl", 2000)
    held_out = corpora.written(corpora.dialogues(data, "dev"), folder / "data/dialogues-dev.jsonl", 200)
    raw = _causal(corpora.stories(data, folder / "stories260K"), text, held_out)
    raw["data"] |= {"text": "turns", "speakers": {"USER": "USR:", "SYSTEM": "SYS:"}}
    return Corpus("dialogues", raw, folder, console, 2000, ("USR:", "SYS:"))


def _wikitext(data: Path, folder: Path, console: Console) -> Corpus:
    text = corpora.written(corpora.wikitext(data, "train"), folder / "data/wikitext-train.jsonl", 6000)
    held_out = corpora.written(corpora.wikitext(data, "valid"), folder / "data/wikitext-valid.jsonl", 600)
    raw = _causal(corpora.stories(data, folder / "stories260K"), text, held_out)
    return Corpus("WikiText-2", raw, folder, console, 6000)


def _causal(model: Path, text: Path, held_out: Path) -> dict[str, Any]:
    return {
        "model": str(model),
        "data": {"train": str(text), "eval": str(held_out), "max_length": 64, "duplicates": False},
        "train": {"batch": 512.0, "learning_rate": 2e-3, "steps": STEPS},
    }


def _glue(data: Path, folder: Path, console: Console) -> Iterator[Corpus]:
    base = _classifier_base(data, folder, console)
    for name, read, steps in (
        ("SST-2", corpora.sst2, 100),
        ("CoLA", corpora.cola, 60),
        ("RTE", corpora.rte, 60),
    ):
        text = corpora.written(read(data, "train"), folder / f"data/{name}-train.jsonl")
        held_out = corpora.written(read(data, "dev"), folder / f"data/{name}-dev.jsonl")
        raw = {
            "model": str(base),
            "task": "classification",
            "data": {
                "train": str(text),
                "eval": str(held_out),
                "label": "label",
                "max_length": 96,
                "duplicates": False,
            },
            "train": {"batch": 512.0, "learning_rate": 1e-3, "steps": steps},
        }
        yield Corpus(name, raw, folder, console, 0)


def _classifier_base(data: Path, folder: Path, console: Console) -> Path:
    """A model shaped as RoBERTa, pretrained on public text: the paragraphs of WikiText-2."""
    text = corpora.written(corpora.wikitext(data, "train"), folder / "data/wikitext-all.jsonl")
    settings = check(
        {
            "model": str(corpora.roberta(folder / "roberta")),
            "task": "masked-lm",
            "data": {"train": str(text), "eval": 0.01, "max_length": 96, "duplicates": False},
            "privacy": {"mechanism": "none", "published_key": "study selective pretraining"},
            "train": {
                "steps": 600,
                "batch": 64.0,
                "learning_rate": 1e-3,
                "warmup": 100,
                "schedule": "linear",
                "checkpoint_every": 250,
            },
            "run": str(folder / "pretraining"),
        }
    )
    console.say("pretraining the classifiers' base on public text")
    if not fine_tune(Run(settings), console).finished:
        raise KeyboardInterrupt
    return Run(settings).release


# the tables ----------------------------------------------------------------------------------------------------
def run(data: Path, folder: Path) -> dict[str, Any]:
    """Train everything, or resume, and make the tables."""
    console = Console()
    rows: list[Row] = []
    for corpus in (_dialogues(data, folder, console), _wikitext(data, folder, console)):
        rows += _compared(corpus, LEVELS)
        if corpus.tokens:  # dialogues: annotated, so that somebody can screen them
            rows += [*_imperfect(corpus), *_few(corpus)]
    for corpus in _glue(data, folder, console):
        rows += _compared(corpus, LEVELS if corpus.name == "SST-2" else (SCREENED,))
    return {"rows": [asdict(row) for row in rows], "markdown": _table(rows)}


def _compared(corpus: Corpus, levels: tuple[str, ...]) -> Iterator[Row]:
    """No DP, DP-SGD without and with the added tokens, CRT with the noise of fine-tuning twice; and each level."""
    steps = int(corpus.raw["train"]["steps"])
    private = {"mechanism": "dp-sgd", "epsilon": EPSILON}
    yield corpus.train("no DP", corpus.config("none", privacy={"mechanism": "none"}))[0]
    yield corpus.train("DP-SGD", corpus.config("dp-sgd", privacy=private))[0]
    if corpus.is_causal:
        tokens = ["<mask>", *corpus.tokens]
        settings = corpus.config("dp-sgd-tokens", privacy=private, special_tokens=tokens)
        yield corpus.train("DP-SGD (+ tokens)", settings)[0]
    for level in levels:
        yield from corpus.twice("JFT", level, steps)
    settings = corpus.config(
        "crt",
        detector=detector(SCREENED, 1.0),
        special_tokens=list(corpus.tokens),
        privacy={"mechanism": "crt", "noise_multiplier": _noise_of(corpus)},
        redacted={"steps": steps // 2},
        train={"steps": steps // 2},
    )
    yield corpus.train("CRT, same noise", settings)[0]


def _noise_of(corpus: Corpus) -> float:
    """The noise multiplier of the run in two phases that CRT is compared with."""
    guarantee = corpus.folder / corpus.name / f"JFT-{SCREENED}" / "guarantee.json"
    return float(json.loads(guarantee.read_text("utf-8"))["noise_multiplier"])


def _imperfect(corpus: Corpus) -> Iterator[Row]:
    """What can be done where a detector misses something (Shi et al. 2022, sections 6.2 and 6.3)."""
    few = _screened(corpus, 1, corpus.folder / "data/screened.jsonl", f"JFT,-screened-{SCREENED}")
    yield from corpus.twice("JFT, screened", redacted={"mode": "screened", "marks": str(few.path)})
    many = _screened(corpus, 10, corpus.folder / "data/screened-10.jsonl", "sample")
    rates = {"JFT, light noise": many.missing_rate()}
    # As if it had missed all that it found (Shi et al. 2022, section 6.3).
    rates["JFT, conservative light noise"] = (many.facts()["masked"],) * 2
    for method, rate in rates.items():
        light = {"mode": "light-noise", "epsilon": EPSILON / 3, "missing_rate": rate}
        yield from corpus.twice(method, redacted=light)


def _screened(corpus: Corpus, draws: int, path: Path, name: str) -> Marks:
    """A sample of the documents of the run `name`, screened by the data's own annotations."""

    def config(policy: dict[str, Any]) -> Config:
        tokens = list(corpus.tokens)
        return corpus.config(name, detector=policy, privacy={"mechanism": "redacted"}, special_tokens=tokens)

    ours, annotated = config(detector(SCREENED, None)), config({"spans": "spans"})
    if not path.exists():
        drawn = path.with_suffix(".drawn")
        drawn.unlink(missing_ok=True)
        with Policy.of(ours) as policy, corpus.console.track("documents drawn") as track:
            sample(lambda: training_documents(ours), policy, Run(ours).key(), FEW, draws, drawn, track)
        header, *lines = drawn.read_text("utf-8").splitlines()
        records = {record["document"]: record for record in map(json.loads, lines)}
        documents = [document for document in training_documents(annotated) if document.number in records]
        with Policy.of(annotated) as policy:
            for document, spans in zip(documents, policy.find(documents), strict=True):
                _mark(records[document.number], document.text, spans)
        write_text(path, "\n".join([header, *map(json.dumps, records.values())]) + "\n")
    return Marks.load(path)


def _mark(record: dict[str, Any], text: str, annotated: Sequence[Span]) -> None:
    """What a person would do who knows the annotations."""
    masked = [(start, end) for start, end, _ in record["spans"]]
    missed = {
        text[span.start : span.end]
        for span in annotated
        if not any(start <= span.start and span.end <= end for start, end in masked)
    }
    record |= {"screened": True, "missed": sorted(missed)}


def _few(corpus: Corpus) -> Iterator[Row]:
    """Little text altogether (Shi et al. 2022, Table 8)."""
    documents = max(20, round(FEW * corpus.documents))
    little: dict[str, Any] = {"data": {"max_documents": documents}, "train": {"batch": 32.0}}
    private = {"mechanism": "dp-sgd", "epsilon": EPSILON}
    name = f"{documents} documents"
    settings = corpus.config("few-none", privacy={"mechanism": "none"}, **little)
    yield corpus.train(f"no DP, {name}", settings)[0]
    yield corpus.train(f"DP-SGD, {name}", corpus.config("few-dp-sgd", privacy=private, **little))[0]
    yield from corpus.twice(f"JFT, {name}", **little)


def _table(rows: list[Row]) -> str:
    lines = [
        "| data | method | level | tokens masked | epsilon | epsilon as in 004 | perplexity or accuracy |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        epsilon = " to ".join(at_most(value, 3) for value in row.epsilon[:2]) or "inf"
        if len(row.epsilon) > 2:
            epsilon += f"; {at_most(row.epsilon[2], 3)} for a row with a missed word"
        cells = [
            row.corpus,
            row.method,
            row.level,
            "" if row.share is None else f"{row.share:.1%}",
            epsilon,
            "" if row.paper is None else at_most(row.paper, 3),
            f"{row.score:.1f}%" if row.is_accuracy else f"{row.score:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(run)
