"""Texts that are more than one field: a conversation by its chat template, a prompt and its completion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from confide.data.chat import ChatTemplate, Conversation, Message
from confide.data.layout import Layout
from confide.data.readers.dialogues import said_in, spans_in
from confide.data.readers.documents import Record, Worded, Wording
from confide.data.readers.fields import Template, clean_text, lookup
from confide.utils.errors import InputError

if TYPE_CHECKING:
    from confide.config.data_section import Data
    from confide.config.schema import Config


def read_key(data: Data) -> str:
    """Return the key that says which text is read, with its value, as in "data.text ('body')"."""
    key = "messages" if data.messages is not None else "completion" if data.completion is not None else "text"
    return f"data.{key} ({getattr(data, key)!r})"


def wording_of(data: Data, spans: str | None, loss_on: str, tokenizer: Any) -> Wording | None:
    """Return how a config makes a record's text, if not by `data.text`.

    Args:
        data: the config's section.
        spans: `detector.spans`.
        loss_on: as `loss_on` returns it.
        tokenizer: that of the model.

    Raises:
        InputError: the tokenizer has no chat template, and messages need one.
    """
    if (data.messages is not None or data.completion is not None) and tokenizer is None:
        raise ValueError("chats and completions need the tokenizer")
    if data.messages is not None:
        return _Chats(data, spans, loss_on, ChatTemplate(tokenizer, data.speakers))
    if data.completion is not None:
        return _Completions(data, loss_on, tokenizer)
    return None


def is_worded(config: Config) -> bool:
    """Tell whether the text of a record takes the model's tokenizer to make."""
    return config.data.messages is not None or config.data.completion is not None


def loss_on(config: Config) -> str:
    """Return what is predicted: `all`, `assistant` or `completion`."""
    data = config.data
    usual = (
        "assistant" if data.messages is not None else "completion" if data.completion is not None else "all"
    )
    return config.train.loss_on or usual


class _Chats:
    def __init__(self, data: Data, spans: str | None, loss_on: str, template: ChatTemplate) -> None:
        self._template, self._spans, self._loss_on = template, spans, loss_on
        self._field, self._tools = str(data.messages), data.tools

    def __call__(self, record: Record) -> Worded:
        fields, where = record.fields, record.where
        listed = lookup(fields, self._field, where, "data.messages")
        messages = self._template.messages(listed, where)
        if not any(message["content"].strip() or "tool_calls" in message for message in messages):
            return Worded("")
        tools = None if self._tools is None else lookup(fields, self._tools, where, "data.tools")
        found = self._template.conversation(messages, where, tools)
        spans = None if self._spans is None else _shifted(found, listed, messages, self._spans, where)
        return Worded(found.text, found.given(), found.layout(self._loss_on), spans)


class _Completions:
    """A prompt and its completion: two texts, or two lists of messages of one conversation."""

    def __init__(self, data: Data, loss_on: str, tokenizer: Any) -> None:
        self._prompt = Template(str(data.prompt), "data.prompt")
        self._completion = Template(str(data.completion), "data.completion")
        self._loss_on, self._speakers, self._tokenizer = loss_on, data.speakers, tokenizer
        self._template: ChatTemplate | None = None

    def __call__(self, record: Record) -> Worded:
        fields, where = record.fields, record.where
        lists = [
            lookup(fields, part.field, where, key) if part.field is not None else None
            for part, key in ((self._prompt, "data.prompt"), (self._completion, "data.completion"))
        ]
        if all(isinstance(part, list | tuple) for part in lists):
            return self._messages(lists[0], lists[1], where)
        prompt, said = (clean_text(part.fill(fields, where)) for part in (self._prompt, self._completion))
        if not said.strip():
            return Worded("")
        text = prompt + said
        predicted = None if self._loss_on == "all" else ((len(prompt), len(text)),)
        return Worded(text, layout=Layout(predicted, has_ends=False))

    def _messages(self, prompt: Any, completion: Any, where: str) -> Worded:
        if self._template is None:
            self._template = ChatTemplate(self._tokenizer, self._speakers)
        messages = self._template.messages([*prompt, *completion], where)
        found = self._template.conversation(messages, where)
        return Worded(found.text, found.given(), found.layout(self._loss_on, first_answer=len(prompt)))


def _shifted(
    found: Conversation, listed: Sequence[Any], messages: Sequence[Message], field: str, where: str
) -> list[list[Any]]:
    """Return the spans that each message lists, counted in the whole text.

    Raises:
        InputError: a message lists no spans, or the template does not show what it says: a secret without a mark
            would not be protected.
    """
    spans: list[list[Any]] = []
    for number, (turn, raw, message) in enumerate(zip(found.turns, listed, messages, strict=True), 1):
        here = f"{where}: message {number}"
        said = said_in(raw, here) if message["content"] else ""
        for start, end, *kind in spans_in(raw, field, len(said), here):
            if turn.said is None:
                raise InputError(
                    f"{here}: the chat template changes what it says, so its spans have no place"
                )
            first, last = turn.said
            begin = start - (said[start - 1 : start + 1] == "\r\n" and start > 0)
            places = (first - turn.cut + len(clean_text(said[:place])) for place in (begin, end))
            spans.append([min(max(place, first), last) for place in places] + kind)
    return spans
