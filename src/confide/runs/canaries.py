"""Make canaries: made-up units, planted among the private ones before training, each by a fair coin that is sealed.

What is planted follows from a seed alone, and the ledger's first line holds a hash of it. So an auditor can show
that no coin was chosen after looking at the model.

There are three games. *Presence*: a unit is there, or its rows predict nothing, which is the unit zeroed out.
*Value*, if text is protected and not whole units (selective DP, secrets): one of two contents stands there.
*Mask*, if a secret that a detector misses is protected next to one that it finds (crt): a number stands there, or
a mask in its place.
"""

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from confide.config import registry
from confide.data.readers import Document
from confide.data.unit_graph import UnitGraph
from confide.privacy import mechanisms
from confide.privacy.mechanisms.values import GAMES, Game
from confide.randomness.streams import RunKey, Stream
from confide.utils.errors import InputError
from confide.utils.files import write_text

if TYPE_CHECKING:
    from confide.config.schema import Config

FILE = "canaries.json"
GRAPH = "canaries"
"""Folder in the data folder, with the planted canaries and the rows of every content, planted or not."""

SAMPLED = 1_000
"""Count of random numbers tried in a canary's place, to count those that change nothing public."""

MOST_DIGITS = 7  # up to this many digits, all numbers are ranked
SPREAD = 4  # texts that the base model generates for each canary that is chosen from them
WHERE = "canaries"


@dataclass(frozen=True)
class Canary:
    """One made-up unit.

    Attributes:
        name: name of the unit.
        contents: the texts that may stand there: one in the game of presence, two in the others.
        coin: the index of the text that stands there; in the game of presence 0 if the text does and 1 if nothing
            does.
        insertions: number of the unit's documents that hold the text.
        secrets: the part of each text that was chosen at random, if there is one; a mask is none.
        perplexity: of a generated text under the base model.
    """

    name: str
    contents: tuple[str, ...]
    coin: int
    insertions: int
    secrets: tuple[str, ...] = ()
    perplexity: float | None = None

    @property
    def is_planted(self) -> bool:
        return self.coin < len(self.contents)


@dataclass(frozen=True)
class Manifest:
    """Record of the planted canaries.

    Attributes:
        seed: hexadecimal digits, from which all coins and texts follow.
        game: what a coin decides.
        family: as in `canaries.family`.
        template: of the family `digits`.
        canaries: in the order of their numbers.
    """

    seed: str
    game: Game
    family: str
    template: str
    canaries: tuple[Canary, ...]

    @classmethod
    def draw(cls, config: "Config", tokenizer: Any, key: RunKey | None) -> "Manifest":
        """Flip the coins and make the texts. Without a run key the seed comes from the operating system.

        Raises:
            InputError: the family cannot make such texts; the message names the key.
        """
        settings = config.canaries
        seed = secrets.token_hex(32)
        if key is not None:
            seed = key.stream("audit", "canaries").uint64(4).tobytes().hex()
        source = _source(seed)
        game = mechanisms.needs_of(config).game
        sides = game.texts
        contents = list(_contents(config, tokenizer, settings.count * sides, source))
        coins = source.stream("audit", "coins").below(np.full(settings.count, 2))
        turns = [settings.insertions] if isinstance(settings.insertions, int) else settings.insertions
        canaries = []
        for number, coin in enumerate(coins.tolist()):
            own = contents[number * sides : (number + 1) * sides]
            chosen = tuple(each.secret for each in own if each.secret is not None)
            texts = tuple(each.text for each in own)
            if game.has_mask:
                texts += (settings.template.replace("{}", tokenizer.mask_token),)
            times, perplexity = turns[number % len(turns)], own[0].perplexity
            canaries.append(Canary(_name(seed, number), texts, coin, times, chosen, perplexity))
        return cls(seed, game, settings.family, settings.template, tuple(canaries))

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Load the manifest of a data folder.

        Raises:
            InputError: there is none, or it is damaged.
        """
        path = folder / FILE
        try:
            found = json.loads(path.read_text("utf-8"))
            canaries = tuple(
                Canary(
                    c["name"],
                    tuple(c["contents"]),
                    c["coin"],
                    c["insertions"],
                    tuple(c["secrets"]),
                    c["perplexity"],
                )
                for c in found.pop("canaries")
            )
            return cls(**found | {"game": GAMES[found["game"]]}, canaries=canaries)
        except FileNotFoundError:
            raise InputError(
                f"{path}: no canaries were planted; set canaries.count before training to audit the claim itself"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path} is damaged: the coins cannot be trusted") from None

    def sample(self) -> list[str]:
        """Return `SAMPLED` texts of family `digits`, with numbers drawn at random."""
        digits = len(self.canaries[0].secrets[0])
        drawn = _source(self.seed).stream("audit", "sample").below(np.full(SAMPLED, 10**digits))
        return [self.template.replace("{}", f"{number:0{digits}d}") for number in drawn.tolist()]

    def write(self, folder: Path) -> None:
        write_text(folder / FILE, self._text())

    def _text(self) -> str:
        return json.dumps(asdict(self) | {"game": self.game.name}, indent=1) + "\n"

    @property
    def commitment(self) -> str:
        """SHA-256 of the manifest. It reveals nothing of the manifest: the seed has 256 random bits."""
        return hashlib.sha256(self._text().encode()).hexdigest()

    def documents(self, config: "Config") -> Iterator[Document]:
        """Yield the planted documents, to be read like any other training text."""
        for canary in self.canaries:
            if canary.is_planted:
                for _ in range(canary.insertions):
                    yield document(canary.contents[canary.coin], canary.name, config)

    def absent(self) -> Iterator[str]:
        """Yield the units of the rows that predict nothing, one entry per row: as many rows as with their text."""
        for canary in self.canaries:
            if not canary.is_planted:
                yield from [canary.name] * canary.insertions

    def rows(self, graph: UnitGraph, world: int = 0) -> np.ndarray:
        """Find the row of each canary's content in the graph of all contents: int64[m] row numbers."""
        places = {name: unit for unit, name in enumerate(graph.unit_names())}
        return np.concatenate([graph.rows_of(places[f"{canary.name}/{world}"]) for canary in self.canaries])

    def units(self, graph: UnitGraph) -> np.ndarray:
        """Find the canaries among the units of the training graph: int64[m]."""
        places = {name: unit for unit, name in enumerate(graph.unit_names())}
        return np.array([places[canary.name] for canary in self.canaries])

    def place(self) -> tuple[int, int]:
        """Return where the number stands in each content of family `digits`: characters [start, end)."""
        start = self.template.index("{}")
        return start, start + len(self.canaries[0].secrets[0])

    @property
    def coins(self) -> np.ndarray:
        """Coins of the canaries: int64[m]."""
        return np.array([canary.coin for canary in self.canaries])


def numbers_are_guessed(config: "Config") -> bool:
    """Return True if an audit also guesses at numbers.

    It does not under crt, since rows hold no number where a mask stands. Nor does it with a published key: the
    numbers follow from it, so anybody may know them.
    """
    canaries = config.canaries
    return (
        canaries.family == "digits"
        and canaries.digits <= MOST_DIGITS
        and registry.task_facts(config.task).is_causal
        and config.privacy.published_key is None
        and not mechanisms.needs_of(config).game.has_mask
    )


def document(text: str, unit: str, config: "Config") -> Document:
    """Make a document that holds a text as the data would; fields that name sensitive parts are empty."""
    column = config.secrets.column or []
    fields: dict[str, Any] = dict.fromkeys([column] if isinstance(column, str) else column)
    if config.detector.spans is not None:
        fields |= {config.detector.spans: [], config.data.text: text}
    return Document(text, (unit,), None, WHERE, fields, number=-1)  # not a document that somebody could list


def blank(tokenizer: Any) -> np.ndarray:
    """Return a row that predicts nothing under any task: one special token."""
    for token in (tokenizer.eos_token_id, tokenizer.cls_token_id, tokenizer.pad_token_id):
        if token is not None:
            return np.array([token])
    return np.zeros(1, np.int64)


def _source(seed: str) -> RunKey:
    return RunKey.from_text(f"canaries {seed}")


def _name(seed: str, number: int) -> str:
    return f"canary:{seed[:8]}:{number}"  # no unit of the data has such a name by accident


@dataclass(frozen=True)
class _Content:
    """A text; its random part, for family `digits`; its perplexity, if it was generated."""

    text: str
    secret: str | None = None
    perplexity: float | None = None


def _contents(config: "Config", tokenizer: Any, count: int, source: RunKey) -> Iterator[_Content]:
    settings, stream = config.canaries, source.stream("audit", "contents")
    if settings.family == "digits":
        numbers = _distinct(count, 10**settings.digits, stream)
        for number in numbers:
            secret = f"{number:0{settings.digits}d}"
            yield _Content(settings.template.replace("{}", secret), secret)
    elif settings.family == "rare-tokens":
        whole = _rare_tokens(tokenizer)
        picked = stream.below(np.full(count * settings.tokens, len(whole))).reshape(count, -1)
        for row in picked:
            yield _Content("".join(whole[i] for i in row).strip())
    else:
        from confide.runs.generated_canaries import texts

        for text, perplexity in texts(config, tokenizer, count, SPREAD, stream):
            yield _Content(text, perplexity=perplexity)


def _distinct(count: int, size: int, stream: Stream) -> list[int]:
    """Draw different numbers below `size`, uniformly."""
    if count > size // 2:
        raise InputError(
            f"canaries.digits: {count} different numbers need more than {len(str(size)) - 1} digits"
        )
    found: dict[int, None] = {}
    start = 0
    while len(found) < count:
        for word in stream.uint64(count, start).tolist():
            if len(found) < count:
                found[word % size] = None
        start += count
    return list(found)


def _rare_tokens(tokenizer: Any) -> Sequence[str]:
    """Return the rare tokens that are words or beginnings of words, with a space before.

    They come from the last quarter of the vocabulary. Vocabularies are built from the most frequent pieces on, so
    the last are the rarest.
    """
    special = set(tokenizer.all_special_ids)
    ids = [i for i in range(len(tokenizer)) if i not in special]
    texts = [tokenizer.decode([i]) for i in ids]
    words = [f" {text.strip()}" for text in texts if len(text.strip()) > 1 and "\ufffd" not in text]
    if len(words) < 2:
        raise InputError("canaries.family: rare-tokens finds no whole words in this tokenizer; use digits")
    return words[-max(2, len(words) // 4) :]
