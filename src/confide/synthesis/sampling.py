"""Sample documents from a released model, in batches that do not depend on who draws them or when."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from confide.privacy.guarantee import Guarantee
from confide.runs.released import GUARANTEE, release_in
from confide.utils.errors import InputError

Document = dict[str, Any]
"""`text`, the `prompt` that it goes on from, and how it `ended`: see `confide.runs.generate.Said.stopped`.

The fields of its condition, if it has one, stand before them. A conversation has its `messages` too, and as text what
is said.
"""


@dataclass(frozen=True)
class Batch:
    """Documents that are drawn together.

    Attributes:
        number: of the batch, which decides its draws.
        prompt: the place of its prompt.
        size: how many.
    """

    number: int
    prompt: int
    size: int


@dataclass(frozen=True)
class Asked:
    """What is to be sampled.

    Attributes:
        documents: how many.
        prompts: what documents begin with; an empty one is no prompt.
        shares: of the documents, one for each prompt; none: all alike.
        named: the fields of each prompt's condition, which its documents get; none: no fields.
        counted: the shares were counted in the private text, with noise that the claim covers.
        max_new_tokens: of a document, without its prompt.
        bounds: of its tokens in place of that, of which each document draws one; none: no such draw.
        bound_shares: how often each of them is drawn.
        temperature, top_p: as in `confide generate`; 1 and 1 draw from the model's own distribution.
        seed: of all draws.
        chat: put prompts into the tokenizer's chat template.
        turns: of a conversation, at most, both sides counted; 0: no conversations.
        batch: documents that are drawn together.
        base: of an adapter, if the one that it names is not to be found.
        doubts: what is to be said of counts that may be noise alone.
    """

    documents: int
    prompts: tuple[str, ...] = ("",)
    shares: tuple[float, ...] = ()
    named: tuple[dict[str, str], ...] = ()
    counted: bool = False
    max_new_tokens: int = 256
    bounds: tuple[int, ...] = ()
    bound_shares: tuple[float, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    chat: bool = False
    turns: int = 0
    batch: int = 32
    base: str | None = None
    doubts: tuple[str, ...] = ()

    def quotas(self) -> list[int]:
        """Return how many documents each prompt gets: the nearest whole numbers to the shares (largest remainders)."""
        shares = self.shares or (1.0,) * len(self.prompts)
        exact = [self.documents * share / sum(shares) for share in shares]
        found = [int(each) for each in exact]
        behind = sorted(range(len(exact)), key=lambda place: found[place] - exact[place])
        for place in behind[: self.documents - sum(found)]:
            found[place] += 1
        return found

    def most_tokens(self, batch: Batch) -> tuple[int, ...]:
        """Draw how many tokens each document of a batch may have at most; () if all have `max_new_tokens`."""
        if not self.bounds:
            return ()
        draws = Random(f"lengths {self.seed} {batch.number}")
        return tuple(draws.choices(self.bounds, self.bound_shares, k=batch.size))


def planned(missing: list[int], first: int, most: int) -> list[Batch]:
    """Deal so many documents of each prompt into batches of nearly the same size, at most `most` each, by turns.

    Args:
        first: the number of the first batch.
    """
    dealt = []
    for prompt, count in enumerate(missing):
        batches = -(-count // most)
        for place in range(batches):
            size = count * (place + 1) // batches - count * place // batches
            dealt.append((place, prompt, size))
    return [Batch(first + at, prompt, size) for at, (_, prompt, size) in enumerate(sorted(dealt))]


@dataclass(frozen=True)
class Sampling:
    """The job of each process: it loads the model once, and answers with the documents of each batch.

    Attributes:
        release: the released folder. Nothing else of the run is read.
    """

    release: str
    asked: Asked

    def ready(self) -> Callable[[Batch], list[Document]]:
        from confide.models.released import load_alone
        from confide.runs.generate import Options, Prompter, Voice
        from confide.synthesis.turns import Conversations

        asked = self.asked
        model, tokenizer = load_alone(Path(self.release), asked.base)
        options = Options(asked.max_new_tokens, asked.temperature, asked.top_p, asked.seed, asked.chat)
        voice = Voice("the model", model, Prompter(tokenizer, options))
        talks = Conversations(voice, asked.turns) if asked.turns else None

        def drawn(batch: Batch) -> list[Document]:
            prompt = asked.prompts[batch.prompt]
            named = asked.named[batch.prompt] if asked.named else {}
            if talks is not None:
                return talks.drawn(prompt, batch.size, seed_of(asked.seed, batch.number))
            said = voice.several(
                prompt, batch.size, seed_of(asked.seed, batch.number), asked.most_tokens(batch)
            )
            return [{**named, "prompt": prompt, "text": each.text, "ended": each.stopped} for each in said]

        return drawn


def seed_of(seed: int, number: int) -> int:
    """Return the seed of a batch, a function of its number alone, so that batches may be drawn in any order."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "big") >> 1


def released_folder(path: Path) -> Path:
    """Find the released model: in a run folder its `release/`, or the folder itself.

    Raises:
        InputError: there is none, or it writes no text.
    """
    if folder := release_in(path):
        return folder
    if path.is_file():
        raise InputError(f"{path}: is a file: give the run folder, which a config names as run")
    if not path.exists():
        raise InputError(f"{path}: no such folder: give a run folder, or what was released from one")
    if (path / "config.yaml").is_file():
        raise InputError(
            f"{path}: has released nothing yet: `confide train` goes on where it stopped, and releases"
        )
    raise InputError(
        f"{path}: holds no released model with its {GUARANTEE}: give a run folder, or what was released from one"
    )


def claim_of(release: Path) -> Guarantee:
    """Read the claim that a released model has."""
    return Guarantee.load(release / GUARANTEE)
