"""Conversations as one text, by a chat template, and where in that text each turn and each answer stands.

The text is that of the template and nothing else: transformers renders it. Where an answer stands is told

1. by the template itself, if it marks what the model generates (`{% generation %}`);
2. else by rendering the same roles with marks in place of what is said. The pieces between the marks are those of the
   template, and they must make up the text;
3. else, for tool calls and templates that change what is said, by rendering ever longer beginnings: each must be a
   beginning of the whole.

A conversation whose answers none of these finds is refused, since a loss on the wrong side's words would be a mistake
that nobody sees.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from confide.data.layout import Layout, Place
from confide.data.readers.dialogues import said_in, speaker_of
from confide.data.readers.fields import clean_text
from confide.utils.errors import InputError

ROLES = ("system", "developer", "user", "assistant", "tool")
_ANSWERING = ("assistant", "tool")
OTHER_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
}
"""Roles by the names that other data sets give them."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ (message['content'] or '') + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ (message['content'] or '') + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

Message = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """A turn of a conversation, in characters of its text.

    Attributes:
        start, end: the turn with all that the template puts around it.
        said: what was said; None if the template changed it or left it out.
        cut: how many characters the template took away at the beginning of what was said.
        answer: what the model is to say, with the mark that ends its turn; None of other roles.
        begins: a row may begin with it. False if the template does not show where the turn before it ends.
    """

    role: str
    start: int
    end: int
    said: Place | None = None
    cut: int = 0
    answer: Place | None = None
    begins: bool = True


@dataclass(frozen=True)
class Conversation:
    """A conversation as its template writes it."""

    text: str
    turns: tuple[Turn, ...]

    def layout(self, loss_on: str, first_answer: int = 0) -> Layout:
        """Return the layout of the text.

        Args:
            loss_on: `all`, `assistant`, or `completion`, which is the last turn.
            first_answer: the first message that may be predicted.
        """
        answers = [turn.answer for turn in self.turns[first_answer:] if turn.answer is not None]
        if loss_on == "completion" and not first_answer:
            answers = answers[-1:] if self.turns and self.turns[-1].answer is not None else []
        order = self._in_order()
        turns = tuple(turn.start for turn in order if turn.begins)
        exchanges = tuple(
            turn.start
            for before, turn in pairwise(order)
            if turn.begins and before.role in _ANSWERING and turn.role not in _ANSWERING
        )
        return Layout(None if loss_on == "all" else tuple(answers), turns, exchanges)

    def _in_order(self) -> list[Turn]:
        return sorted(self.turns, key=lambda turn: (turn.start, turn.end))

    def given(self) -> tuple[Place, ...]:
        """Return the characters that are the template's: all but what was said."""
        found, reached = [], 0
        for turn in self._in_order():
            if turn.said is None:  # not known apart from what the template wrote
                found.append((reached, turn.start))
                reached = turn.end
            else:
                found.append((reached, turn.said[0]))
                reached = turn.said[1]
        found.append((reached, len(self.text)))
        return tuple(place for place in found if place[0] < place[1])


class ChatTemplate:
    """Writes conversations as a tokenizer's chat template has them.

    Raises:
        InputError: the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, speakers: Mapping[str, str]) -> None:
        try:
            self._template = tokenizer.get_chat_template()
        except ValueError as error:
            raise InputError(
                "data.messages: the tokenizer has no chat template: set chat_template: chatml, or name a file with one"
            ) from error
        self._speakers = speakers
        self._special_names = dict(tokenizer.special_tokens_map)
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        self._special = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        self._marks_answers = "generation" in _statements(self._template)
        self._skeletons: dict[Any, _Skeleton | None] = {}

    def messages(self, listed: Any, where: str) -> list[Message]:
        """Return the messages of a record, with roles as templates know them and cleaned text.

        Raises:
            InputError: the list holds something that is no message of a known role.
        """
        if not isinstance(listed, list | tuple) or not all(
            isinstance(message, Mapping) for message in listed
        ):
            raise InputError(
                f"{where}: data.messages names no list of messages, each with a role and content"
            )
        return [self._message(message, f"{where}: message {at}") for at, message in enumerate(listed, 1)]

    def _message(self, message: Mapping[str, Any], where: str) -> Message:
        speaker = speaker_of(message)
        if speaker is None:
            raise InputError(f"{where}: names no role (in a field role, speaker or from)")
        role = self._speakers.get(speaker) or OTHER_NAMES.get(speaker.lower(), speaker.lower())
        if role not in ROLES:
            # What stands there may be a person's name.
            raise InputError(
                f"{where}: its role is none of {', '.join(ROLES)}: give its speaker a role in data.speakers"
            )
        kept = {
            key: message[key]
            for key in ("tool_calls", "tool_call_id", "name")
            if message.get(key) is not None
        }
        said = "" if "content" not in message and "tool_calls" in kept else said_in(message, where)
        return {"role": role, "content": clean_text(said), **kept}

    def conversation(self, messages: Sequence[Message], where: str, tools: Any = None) -> Conversation:
        """Write a conversation, and find its turns and answers.

        Raises:
            InputError: the template refuses the conversation, or does not show where its answers stand.
        """
        text, answers = self._rendered(messages, where, tools)
        found: list[Turn] | None = None
        if not tools and not any("tool_calls" in message for message in messages):
            found = self._by_skeleton(text, messages, where)
        turns = found or self._by_beginnings(text, messages, where, tools)
        if self._marks_answers:
            turns = _with_answers(turns, answers, where)
        return Conversation(text, tuple(turns))

    def end_mark(self) -> str:
        """Return what the model says last in its turn, as the template has it; "" if that is not known."""
        asked: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            found = self.conversation(asked, "chat_template")
        except InputError:
            return ""
        turn = found.turns[-1]
        return (
            ""
            if turn.said is None or turn.answer is None
            else found.text[turn.said[1] : turn.answer[1]].strip()
        )

    def _rendered(
        self, messages: Sequence[Message], where: str, tools: Any, asks: bool = False
    ) -> tuple[str, list[Place]]:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered: Any = render_jinja_template(
                conversations=[list(messages)],
                tools=tools or None,
                chat_template=self._template,
                add_generation_prompt=asks,
                return_assistant_tokens_mask=self._marks_answers,
                **self._special_names,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            # Its own sentence, such as "System role not supported", holds nothing of the conversation.
            reason = str(error) if isinstance(error, TemplateError) else type(error).__name__
            raise InputError(
                f"{where}: the chat template refuses the conversation: {reason[:200]}"
            ) from error
        texts, places = rendered
        return texts[0], [(int(a), int(b)) for a, b in places[0]] if self._marks_answers else []

    # by marks in place of what is said ------------------------------------------------------------------
    def _by_skeleton(self, text: str, messages: Sequence[Message], where: str) -> list[Turn] | None:
        key = tuple(
            (message["role"], bool(message["content"].strip()), message.get("name")) for message in messages
        )
        if key not in self._skeletons:
            if len(self._skeletons) > 4096:
                self._skeletons.clear()
            self._skeletons[key] = self._skeleton(messages, where)
        skeleton = self._skeletons[key]
        return None if skeleton is None else skeleton.fill(text, messages)

    def _skeleton(self, messages: Sequence[Message], where: str) -> _Skeleton | None:
        marked = [
            {**message, "content": f"\ue000{at}\ue001" if message["content"].strip() else message["content"]}
            for at, message in enumerate(messages)
        ]
        whole = self._rendered(marked, where, None)[0]
        ends: list[int | None] = []
        for count in range(1, len(marked)):
            try:
                beginning = self._rendered(marked[:count], where, None)[0]
            except InputError:  # some templates refuse a lone system message
                ends.append(None)
                continue
            ends.append(len(beginning) if whole.startswith(beginning) else None)
        if not all(
            message["content"].strip() for message in messages
        ):  # where a turn without a word stands is unknown
            return None
        starts = [whole.find(message["content"]) for message in marked]
        if min(starts) < 0 or any(whole.count(message["content"]) != 1 for message in marked):
            return None
        order = sorted(range(len(marked)), key=starts.__getitem__)
        stops = [0, *(starts[at] + len(marked[at]["content"]) for at in order)]
        begins = [*(starts[at] for at in order), len(whole)]
        pieces = [whole[stop:start] for stop, start in zip(stops, begins, strict=True)]
        footers: list[int | None] = []
        for stop, following, at in zip(stops[1:], pieces[1:], order, strict=True):
            end = len(whole) if at == order[-1] else ends[at] if at < len(ends) else None
            own = -1 if end is None else end - stop
            footers.append(own if 0 <= own <= len(following) else self._marked_end(following))
        marks = [
            0 if own is None else self._end_mark(piece[:own])
            for piece, own in zip(pieces[1:], footers, strict=True)
        ]
        return _Skeleton(tuple(order), tuple(pieces), tuple(footers), tuple(marks))

    def _marked_end(self, following: str) -> int | None:
        """Return where a turn ends by its last mark, with the blanks behind it; None if no mark ends it."""
        mark = self._end_mark(following)
        if mark == len(following):  # nothing tells the end of this turn from the beginning of the next
            return None
        return mark + len(following[mark:]) - len(following[mark:].lstrip())

    def _end_mark(self, footer: str) -> int:
        """Return how much of what follows an answer the model is to say as well: the token that ends its turn."""
        begin = len(footer) - len(footer.lstrip())
        marks = [mark for mark in self._special if mark and footer.startswith(mark, begin)]
        if marks:
            return begin + max(map(len, marks))
        return len(footer)

    # by ever longer beginnings -------------------------------------------------------------------------
    def _by_beginnings(self, text: str, messages: Sequence[Message], where: str, tools: Any) -> list[Turn]:
        turns, start = [], 0
        for at, message in enumerate(messages):
            end = len(text)
            if at + 1 < len(messages):
                end = self._beginning(text, messages[: at + 1], where, tools)
            said = text.find(message["content"].strip(), start, end) if message["content"].strip() else -1
            place = None if said < 0 else (said, said + len(message["content"].strip()))
            cut = len(message["content"]) - len(message["content"].lstrip())
            answer = None
            if message["role"] == "assistant" and not self._marks_answers:
                first = start if at == 0 else self._beginning(text, messages[:at], where, tools, asks=True)
                own = text[first:end]
                answer = (first, first + self._last_mark(own))
            turns.append(Turn(message["role"], start, end, place, cut, answer))
            start = end
        return turns

    def _beginning(
        self, text: str, messages: Sequence[Message], where: str, tools: Any, asks: bool = False
    ) -> int:
        beginning = self._rendered(messages, where, tools, asks)[0]
        if not text.startswith(beginning):
            raise InputError(
                f"{where}: the chat template writes the first {len(messages)} messages in another way when more "
                "follow, so where answers stand is not known: set chat_template to one that marks them with "
                "{% generation %}"
            )
        return len(beginning)

    def _last_mark(self, own: str) -> int:
        """Return the length of a turn without blanks behind its last mark."""
        short = own.rstrip()
        return len(short) if any(mark and short.endswith(mark) for mark in self._special) else len(own)


@dataclass(frozen=True)
class _Skeleton:
    """The pieces that a template writes around the turns of some roles.

    Attributes:
        order: the messages as they appear in the text: some templates move what the system says.
        pieces: what stands before the first turn's words, between two turns' words, and behind the last.
        footers: for each turn in that order, how much of the piece behind it belongs to it; None if that is unknown.
        marks: for each, how much of that piece ends it.
    """

    order: tuple[int, ...]
    pieces: tuple[str, ...]
    footers: tuple[int | None, ...]
    marks: tuple[int, ...]

    def fill(self, text: str, messages: Sequence[Message]) -> list[Turn] | None:
        """Return the turns, if the text is made of these pieces and of what the messages say; else None."""
        found: dict[int, Turn] = {}
        position, start, begins = 0, 0, True
        for place, at in enumerate(self.order):
            if not text.startswith(self.pieces[place], position):
                return None
            position += len(self.pieces[place])
            content, after = messages[at]["content"], self.pieces[place + 1]
            said = next((each for each in _ways(content) if text.startswith(each + after, position)), None)
            if said is None:
                return None
            begin, position = position, position + len(said)
            footer = self.footers[place]
            end = position + (footer or 0)
            answer = (begin, position + self.marks[place]) if messages[at]["role"] == "assistant" else None
            own = Turn(
                messages[at]["role"], start, end, (begin, position), content.index(said), answer, begins
            )
            found[at], start, begins = own, end, footer is not None
        if text[position:] != self.pieces[-1]:
            return None
        return [found[at] for at in range(len(messages))]


def end_mark(tokenizer: Any) -> str:
    """Return what a model says last in its turn, by a tokenizer's chat template; "" if that is not known."""
    if getattr(tokenizer, "chat_template", None) is None:
        return ""
    return ChatTemplate(tokenizer, {}).end_mark()


def _ways(content: str) -> list[str]:
    """Return how a template may write what is said: as it is, or without blanks at its ends."""
    return list(dict.fromkeys((content, content.strip(), content.rstrip(), content.lstrip())))


def _with_answers(turns: list[Turn], answers: list[Place], where: str) -> list[Turn]:
    """Give the turns the answers that a template itself marks."""
    found = []
    for turn in turns:
        own = [place for place in answers if turn.start <= place[0] < turn.end]
        if len(own) > 1:
            raise InputError(f"{where}: the chat template marks {len(own)} answers in one turn")
        found.append(replace(turn, answer=own[0] if own else None))
    if sum(turn.answer is not None for turn in found) != len(answers):
        raise InputError(f"{where}: the chat template marks answers that stand in no turn of the assistant")
    return found


def _statements(template: str) -> set[str]:
    """Return the names of a template's statements: `generation` is one that transformers has added."""
    return set(re.findall(r"\{%-?\s*(\w+)", template))


def template_text(chosen: str) -> str:
    """Return the template that a config's `chat_template` names.

    Raises:
        InputError: there is no such file.
    """
    if chosen == "chatml":
        return CHATML
    try:
        return Path(chosen).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"chat_template: {chosen!r} is neither `chatml` nor a file that can be read"
        ) from error
