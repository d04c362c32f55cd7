"""A detector as an outside contributor writes it: one file. Its line is put into the registry by the test."""

import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from confide.config.fields import Section
from confide.sensitive.detectors.base import Detector
from confide.sensitive.detectors.spans import Span


class TicketSettings(Section):
    prefix: Literal["TKT", "REQ"] = Field("TKT", description="what a ticket's number begins with")
    digits: int = Field(4, ge=1, description="and how many digits follow")


class Tickets(Detector):
    """Numbers of tickets: TKT-0815."""

    name = "ticket-numbers"
    Settings = TicketSettings

    def __init__(self, settings: TicketSettings, key: str) -> None:
        self._number = re.compile(rf"{settings.prefix}-\d{{{settings.digits}}}")

    @classmethod
    def kinds(cls, settings: TicketSettings) -> tuple[str, ...]:
        return ("TICKET",)

    def find(self, texts: Sequence[str]) -> list[list[Span]]:
        return [[Span(*match.span(), "TICKET") for match in self._number.finditer(text)] for text in texts]
