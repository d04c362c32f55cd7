"""Have a model of a run continue a prompt, token by token."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from confide.data.chat import end_mark
from confide.models import released as model_of
from confide.runs.released import Alone, Released, run_of
from confide.utils.errors import InputError

MOST_SEED = 1 << 31
ALONE, BASE, TWIN = "release", "base", "twin"


@dataclass(frozen=True)
class Options:
    """How to generate.

    Attributes:
        max_new_tokens: at most so many tokens are added to the prompt.
        temperature: 0 takes the likeliest token each time.
        top_p: draw from the fewest tokens that have this much probability together.
        seed: of the draws; the same for each model and each prompt.
        chat: put the prompt into the tokenizer's chat template; None: if it has one.
        system: what the template says of the model's part.
    """

    max_new_tokens: int = 100
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 0
    chat: bool | None = None
    system: str | None = None


@dataclass(frozen=True)
class Said:
    """What a model said.

    Attributes:
        tokens: how many tokens were generated.
        stopped: what ended it: `end of text`, `end of turn`, `max-new-tokens`, or `longest row`: no more fits into
            the model.
    """

    text: str
    tokens: int
    stopped: str


def new_seed() -> int:
    """Draw a seed."""
    return secrets.randbelow(MOST_SEED)


def writer(root: Path, twin: bool = False) -> Released:
    """Find the released model of a run, which must be one that writes text.

    Raises:
        InputError: the run has released nothing, or its model does not write text.
    """
    found = Released.of(root, twin)
    if not found.facts.is_causal:
        raise InputError(
            f"{root}: a model of task {found.facts.name} writes no text; `confide generate` is for a causal-lm"
        )
    return found


def writer_of(root: Path, base_at: str | None = None) -> Released | Alone:
    """Find the released model of a run, or a release without its run.

    Args:
        root: a run folder, its `release/`, or a copy of that.
        base_at: the base of an adapter without its run.

    Raises:
        InputError: as `writer`; or a base is given for a run, which knows its own.
    """
    root = run_of(root)
    if found := Alone.of(root, base_at):
        return found
    if base_at is not None:
        raise InputError(
            f"--base is for a release without its run: {root} names its base itself, so leave --base out"
        )
    return writer(root)


class Prompter:
    """Turns prompts into tokens, as the rows of a training began."""

    def __init__(self, tokenizer: Any, options: Options):
        self.tokenizer, self.options = tokenizer, options
        has_template = bool(getattr(tokenizer, "chat_template", None))
        self.chat = has_template if options.chat is None else options.chat
        if self.chat and not has_template:
            raise InputError("--chat: the tokenizer of this model has no chat template; leave it out")
        self.mark = end_mark(tokenizer) if self.chat else ""
        if options.system is not None and not self.chat:
            raise InputError(
                "--system is for a chat template, "
                + (
                    "which --no-chat leaves out"
                    if has_template
                    else "and the tokenizer of this model has none"
                )
            )

    def __call__(self, prompt: str) -> list[int]:
        """Tokenise a prompt.

        Raises:
            InputError: it has no token, or the chat template refuses it.
        """
        if self.chat:
            text, before = self._templated(prompt), []
        else:
            start, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
            first = start if start is not None else end  # as data/cutting.py begins a text
            text, before = prompt, [] if first is None else [first]
        ids: list[int] = before + self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if not ids:
            raise InputError("the prompt is empty, and the tokenizer has no token to begin a text with")
        return ids

    def _templated(self, prompt: str) -> str:
        from jinja2 import TemplateError

        turns = [{"role": "user", "content": prompt}]
        if self.options.system is not None:
            turns.insert(0, {"role": "system", "content": self.options.system})
        try:
            text: str = self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            way = "give --no-chat" if self.options.system is None else "leave --system out, or give --no-chat"
            raise InputError(f"the chat template refuses the prompt: {error}: {way}") from None
        return text


class Voice:
    """A model that continues prompts."""

    def __init__(self, name: str, model: Any, prompter: Prompter):
        self.name, self.prompter = name, prompter
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.longest = model_of.longest(model)
        settings = model_of.generation_settings(model)
        ends = settings.eos_token_id if settings.eos_token_id is not None else prompter.tokenizer.eos_token_id
        self.ends: list[int] = [ends] if isinstance(ends, int) else list(ends or ())
        # A turn's mark may be a token of its own, which streams leave out, or be written out in several.
        mark = prompter.tokenizer.get_vocab().get(prompter.mark)
        self.ends += [mark] if mark is not None and mark not in self.ends else []

    def room(self, ids: list[int]) -> int:
        """Return how many tokens may follow a prompt.

        Raises:
            InputError: none.
        """
        wanted = self.prompter.options.max_new_tokens
        if self.longest is None:
            return wanted
        if len(ids) >= self.longest:
            raise InputError(
                f"the prompt has {len(ids):,} tokens, and {self.name} reads and writes at most {self.longest:,} "
                "together: shorten it"
            )
        return min(wanted, self.longest - len(ids))

    def __call__(self, prompt: str, say: Callable[[str], object] = lambda text: None) -> Said:
        """Continue a prompt. `say` gets each piece of text as it comes."""
        ids = self.prompter(prompt)
        streamer = _streamer(self.prompter.tokenizer, say, self.prompter.mark)
        (new,) = self._new_tokens(ids, self.prompter.options.seed, streamer=streamer)
        return self._said(ids, new)

    def several(self, prompt: str, count: int, seed: int, most: Sequence[int] = ()) -> list[Said]:
        """Continue a prompt `count` times, each with draws of its own, in one batch.

        Args:
            most: how many tokens each may add; none: as the options say, which no number exceeds.
        """
        ids = self.prompter(prompt)
        rows = self._new_tokens(ids, seed, count, max(most, default=None))
        limits = most or [self.room(ids)] * count
        return [
            self._said(ids, self._until_end(new)[:limit]) for new, limit in zip(rows, limits, strict=True)
        ]

    def each(self, rows: list[list[int]], seed: int, mark: str) -> list[Said]:
        """Continue prompts of several lengths up to a mark, each with draws of its own, in one batch.

        Args:
            rows: the tokens of each prompt, fewer than the model can hold.
            mark: what ends a turn; it is not a part of the text.
        """
        tokenizer = self.prompter.tokenizer
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else self.ends[0]
        width = max(map(len, rows))
        given = torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=self.device)
        real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=self.device)
        with torch.inference_mode(), _drawn_from(seed):
            out = self.model.generate(
                input_ids=given,
                attention_mask=real,
                generation_config=self._settings(min(self.room(row) for row in rows)),
                stop_strings=[mark],
                tokenizer=tokenizer,
            )
        return [self._turn(self._until_end(new), mark) for new in out[:, width:].tolist()]

    def _turn(self, new: list[int], mark: str) -> Said:
        """Read a turn, whose mark may be a special token."""
        text: str = self.prompter.tokenizer.decode(new, skip_special_tokens=False)
        said, found, _ = text.partition(mark)
        for special in self.prompter.tokenizer.all_special_tokens:
            said = said.replace(special, "")
        at_end = bool(new) and new[-1] in self.ends
        return Said(said, len(new), "end of turn" if found else "end of text" if at_end else "max-new-tokens")

    def _new_tokens(
        self, ids: list[int], seed: int, count: int = 1, most: int | None = None, **more: Any
    ) -> list[list[int]]:
        room = self.room(ids)
        given = torch.tensor([ids] * count, device=self.device)
        with torch.inference_mode(), _drawn_from(seed):
            out = self.model.generate(
                input_ids=given,
                attention_mask=torch.ones_like(given),
                generation_config=self._settings(room if most is None else min(room, most)),
                **self._stop(),
                **more,
            )
        new: list[list[int]] = out[:, len(ids) :].tolist()
        return new

    def _until_end(self, new: list[int]) -> list[int]:
        """Return tokens up to the first that ends a text; what follows pads it to the longest text of its batch."""
        ends = {*self.ends, self.prompter.tokenizer.pad_token_id}
        stop = next((place for place, token in enumerate(new) if token in ends), len(new))
        return new[: stop + 1]

    def _said(self, ids: list[int], new: list[int]) -> Said:
        room = self.room(ids)
        text: str = self.prompter.tokenizer.decode(new, skip_special_tokens=True)
        if self.prompter.mark and self.prompter.mark in text:
            return Said(text.partition(self.prompter.mark)[0], len(new), "end of turn")
        if new and new[-1] in self.ends:
            return Said(text, len(new), "end of text")
        cut = len(new) >= room < self.prompter.options.max_new_tokens
        return Said(text, len(new), "longest row" if cut else "max-new-tokens")

    def _stop(self) -> dict[str, Any]:
        """Stop at the mark that ends a turn, if there is one."""
        mark = self.prompter.mark
        return {"stop_strings": [mark], "tokenizer": self.prompter.tokenizer} if mark else {}

    def _settings(self, room: int) -> Any:
        """Take the model's own settings, but for what the options say."""
        options, settings = self.prompter.options, model_of.generation_settings(self.model)
        sampled = options.temperature > 0
        settings.update(
            max_new_tokens=room,
            max_length=None,
            min_length=0,
            min_new_tokens=0,  # None would be the model's own
            num_beams=1,
            num_return_sequences=1,
            do_sample=sampled,
            temperature=options.temperature if sampled else None,
            top_p=options.top_p if sampled else None,
            top_k=0 if sampled else None,
            eos_token_id=self.ends or None,
            pad_token_id=self.prompter.tokenizer.pad_token_id,
            return_dict_in_generate=False,
        )
        return settings


def _streamer(tokenizer: Any, say: Callable[[str], object], mark: str = "") -> Any:
    from transformers import TextStreamer

    class Pieces(TextStreamer):  # type: ignore[misc]
        """Hands on each piece of text that no later token can change, up to the mark that ends a turn."""

        held = ""
        ended = False

        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            if self.ended:
                return
            self.held += text
            if mark and mark in self.held:
                self.held, self.ended = self.held.partition(mark)[0], True
            may_be = range(min(len(mark) - 1, len(self.held)), 0, -1)
            wait = 0
            if not (self.ended or stream_end):
                wait = next((n for n in may_be if mark.startswith(self.held[-n:])), 0)
            done, self.held = self.held[: len(self.held) - wait], self.held[len(self.held) - wait :]
            if done:
                say(done)

    return Pieces(tokenizer, skip_prompt=True, skip_special_tokens=True)


@contextmanager
def _drawn_from(seed: int) -> Iterator[None]:
    """Seed torch within the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
