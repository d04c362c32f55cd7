"""The config's keys for the source of the text, and for the rows and units that are made of it."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from confide.config import registry
from confide.config.fields import UNSHOWN, Count, Section
from confide.utils.urls import SECRET, holds_secret


def _a_format(name: str) -> str:
    if name != registry.AUTO and not registry.readers.knows(name):
        raise ValueError("a format that can be read")
    return name


def _without_secret(source: str) -> str:
    """Refuse a URL with a password or key in it, and do not show it: a config is copied into its run folder."""
    if holds_secret(source):
        raise PydanticCustomError(UNSHOWN, SECRET)
    return source


Source = Annotated[str, AfterValidator(_without_secret)]


def _no_share(source: str) -> str:
    """Refuse what was meant as a share, and would be looked for as a file."""
    if re.fullmatch(r"\s*(\d*[.,]?\d+\s*%|0?[.,]\d+)\s*", source):
        raise ValueError("a share or a source")
    return source


class Data(Section):
    """The source of the text, and how rows and units are made of it."""

    train: Source = Field(
        description="file, glob, folder, maildir, mbox, tar of mails, data set folder or hub name; or URL of tables: "
        "`s3://bucket/part-*.jsonl`"
    )
    eval: Annotated[float, Field(gt=0, lt=1)] | Annotated[Source, AfterValidator(_no_share)] | None = Field(
        0.1,
        description="a file as for `train`, of other units, or a share of the *units*, held out whole; null for none",
    )
    eval_within: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="in place of eval: this share of each unit's own rows, its first ones, is held out of training, "
        "and the rest trains. Losses on them are of the protected units, and no guarantee covers them",
    )
    eval_within_most: Count = Field(
        32, description="eval_within: the most rows that are held out of one unit"
    )
    format: Annotated[str, AfterValidator(_a_format)] = Field(
        registry.AUTO, description="told by what `train` is, or stated here"
    )
    split: str = Field("train", description="which split of a hub data set")
    delimiter: str | None = Field(
        None,
        description="what stands between the fields of a CSV or TSV; null: as its content has it, and told",
    )
    encoding: str | None = Field(
        None,
        description="of JSON, CSV and text files, as `cp1252` or `utf-16`; null: UTF-8, or what the bytes say beyond "
        "doubt, which is told",
    )
    max_document_bytes: Count = Field(
        1 << 27,
        description="what no document may be larger than, decompressed (128 MiB): a bound on memory, and on what a "
        "small compressed file may grow to",
    )
    text: str = Field("text", description='field that holds the text, or a template: "{subject}\\n{body}"')
    messages: str | None = Field(
        None,
        description="field that lists a conversation's messages, each with `role` and `content`; the tokenizer's chat "
        "template makes the text of them. In place of text",
    )
    tools: str | None = Field(
        None, description="of messages: field that lists the tools an assistant may call, as JSON schemas"
    )
    prompt: str | None = Field(
        None, description="field or template that is read and not learnt; with completion, in place of text"
    )
    completion: str | None = Field(None, description="field or template that is learnt, after prompt")
    speakers: dict[str, str] = Field(
        default_factory=dict,
        description="of dialogues (data.text names a list of turns): the prompt that stands for each speaker; default: "
        "the name and a colon. Of messages: the role of each speaker, system, user, assistant or tool",
    )
    unit: str | list[str] | None = Field(
        None,
        description="field that names the privacy unit; a list makes several owners; `messages.name` takes it from "
        "each message, `messages[user].name` from those of one role; null: each document",
    )
    without_unit: Literal["refuse", "drop", "own"] = Field(
        "refuse",
        description="documents whose unit is empty or not there: `refuse` the data and say how many; `drop` them; or "
        "make each a unit of its `own`: of somebody who wrote several, each is then protected by itself, not all of "
        "them together",
    )
    label: str | None = Field(None, description="field that holds the class, for `task: classification`")
    condition: str | list[str] | None = Field(
        None,
        description="field or fields whose values stand in front of the text, a line `field: value` each and an empty "
        "line, so that `confide synthesize` can ask for documents of a kind",
    )
    conditions: list[str | dict[str, str | int | float | bool]] | Source | None = Field(
        None,
        description="of condition: the public list of its values, `[billing, login]` or "
        "`[{topic: billing, share: 0.3}, ...]`, or a table with such rows. It is published with the model. A record "
        "with other values gets no lines. `share`, or a count: how often `confide synthesize` writes of the kind; "
        "default: all alike",
    )
    clean: Literal["none", "enron"] = Field(
        "none",
        description="`enron`: the mail cleaning of Chua et al. 2024, appendix B (receiver copies, 20-grams, forwards)",
    )
    strip_quotes: bool = Field(
        False, description="remove quoted replies, so that other people's words stay theirs"
    )
    duplicates: bool = Field(True, description="report text that stands in several units; nothing is removed")
    max_length: Annotated[int, Field(ge=2)] = Field(
        128, description="tokens a row; longer documents are cut into rows"
    )
    max_documents: Count | None = Field(None, description="read only the first documents, for a trial")

    @property
    def holds_out(self) -> bool:
        """Whether there is text to evaluate on."""
        return self.eval is not None or self.eval_within is not None
