"""Let a model write conversations: user and assistant take turns, each in the place that the chat template gives it."""

from typing import Any

from confide.runs.generate import Voice
from confide.synthesis.sampling import Document, seed_of
from confide.utils.errors import InputError

_MARK = "\u2063confide speaks here\u2063"
_ROLES = ("user", "assistant")
ALL = "all turns"
"""How a conversation ended that has as many turns as were asked for."""


class Conversations:
    """Writes conversations with one voice.

    Args:
        turns: of a conversation at most, both sides counted.

    Raises:
        InputError: the chat template does not show where a turn begins and ends.
    """

    def __init__(self, voice: Voice, turns: int):
        self._voice, self._turns = voice, turns
        self._tokenizer: Any = voice.prompter.tokenizer
        self._ends = {role: self._around(role, self._opening(role))[1].strip() for role in _ROLES}
        if not all(self._ends.values()):
            raise InputError("--turns: the chat template of this model does not mark where a turn ends")

    def drawn(self, prompt: str, count: int, seed: int) -> list[Document]:
        """Write so many conversations together, each with draws of its own.

        Args:
            prompt: what the user says first; "" for what the model makes of it.
        """
        talks: list[list[dict[str, str]]] = [
            [{"role": "user", "content": prompt}] if prompt else [] for _ in range(count)
        ]
        ended = [""] * count
        for turn in range(1 if prompt else 0, self._turns):
            role = _ROLES[turn % 2]
            rows = {place: self._ids(role, talks[place]) for place, how in enumerate(ended) if not how}
            for place, ids in list(rows.items()):
                if self._voice.longest is not None and len(ids) >= self._voice.longest:
                    ended[place] = "longest row"
                    del rows[place]
            if not rows:
                break
            said = self._voice.each(list(rows.values()), seed_of(seed, turn), self._ends[role])
            for place, each in zip(rows, said, strict=True):
                text = each.text.strip()
                if text:
                    talks[place].append({"role": role, "content": text})
                if not text or each.stopped != "end of turn":
                    ended[place] = each.stopped
        return [
            {
                "prompt": prompt,
                "messages": talk,
                "text": "\n\n".join(message["content"] for message in talk),
                "ended": how or ALL,
            }
            for talk, how in zip(talks, ended, strict=True)
        ]

    def _opening(self, role: str) -> list[dict[str, str]]:
        return [] if role == "user" else [{"role": "user", "content": "a"}]

    def _ids(self, role: str, talk: list[dict[str, str]]) -> list[int]:
        found: list[int] = self._tokenizer(self._around(role, talk)[0], add_special_tokens=False)["input_ids"]
        return found

    def _around(self, role: str, talk: list[dict[str, str]]) -> tuple[str, str]:
        """Return the text before and after what a role says next."""
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                [*talk, {"role": role, "content": _MARK}], tokenize=False
            )
        except TemplateError as error:
            raise InputError(
                f"--turns: the chat template refuses such a conversation: {error}: leave --turns out"
            ) from None
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise InputError(f"--turns: the chat template of this model does not show what a {role} says")
        return before, after
