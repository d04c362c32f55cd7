"""The cleaning of the Enron mail corpus in Mind the Privacy Unit! (Chua et al. 2024), appendix B.

Records are those of `confide.data.readers.mail` or any with the fields `date`, `from`, `to`, `subject`, `body` and,
if there, `cc` and `bcc`. The privacy unit afterwards is the sender: `unit="from"`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from email.utils import parsedate_tz
from typing import Any

from confide.data.readers.documents import Counts, Record
from confide.data.readers.fields import addresses, clean_text, lookup

READ = "read"
UNPARSABLE = "unparsable"
EMPTY = "empty"
FORWARDED = "forwarded"
REPEATED = "repeated 20-gram"
COPIES = "receiver copies added"
KEPT = "kept"

_FORWARD_SUBJECT = re.compile(
    r"\s*(?:(?:re|aw)\s*(?:\[\d+\])?\s*:\s*)*(?:fwd?|forwarded)\s*:|.*\(fwd\)\s*$", re.IGNORECASE
)
_REPLY_SUBJECT = re.compile(r"\s*(?:re|aw)\s*(?:\[\d+\])?\s*:", re.IGNORECASE)
_FORWARD_BANNER = re.compile(
    r"^[ \t>]*(?:-{2,}[ \t]*(?:forwarded[ \t]+(?:by|message)|begin[ \t]+forwarded)\b"
    r"|begin[ \t]+forwarded[ \t]+message)",
    re.IGNORECASE | re.MULTILINE,
)
_ORIGINAL_BANNER = re.compile(r"^[ \t>]*-{2,}[ \t]*original[ \t]+message\b", re.IGNORECASE | re.MULTILINE)


def clean_enron(records: Iterable[Record], counts: Counter[str] | None = None) -> Iterator[Record]:
    """Keep what the paper keeps, one record for each receiver; memory holds one record.

    The steps in this order, each counted under its name:

    - `unparsable`: no sender's address, no valid date, or no receiver at all.
    - `empty`: only blanks in the body. The paper does not say this, but such a record has no text to train on.
    - `forwarded`: see `is_forwarded`.
    - `repeated 20-gram`: some run of 20 words stands in the body more than once.
    - `receiver copies added`: a message to n distinct addresses (To, Cc and Bcc together) gives n records that differ
      in `to` alone, so n - 1 are added. (The CMU release repeats every Cc as Bcc.)

    `kept` = read - unparsable - empty - forwarded - repeated 20-gram + receiver copies added.

    The filters use nothing that differs between copies, so making copies last gives the same records as
    the paper's order. Raises InputError for a record without the fields of mail.
    """
    tally: Counter[str] = Counts() if counts is None else counts
    for name in (READ, UNPARSABLE, EMPTY, FORWARDED, REPEATED, COPIES, KEPT):
        tally.setdefault(name, 0)
    for record in records:
        tally[READ] += 1
        fields = record.fields
        needed = {name: lookup(fields, name, record.where, "the Enron cleaning") for name in _NEEDED}
        sender = _address_list(needed["from"])
        receivers = list(
            dict.fromkeys(found for name in ("to", "cc", "bcc") for found in _address_list(fields.get(name)))
        )
        body, subject = clean_text(str(needed["body"] or "")), str(needed["subject"] or "")
        reason = _reason_to_drop(sender, str(needed["date"] or ""), receivers, subject, body)
        if reason:
            tally[reason] += 1
            continue
        tally[COPIES] += len(receivers) - 1
        for receiver in receivers:
            tally[KEPT] += 1
            copied = dict(fields) | {"from": sender[0], "to": [receiver], "cc": [], "bcc": [], "body": body}
            yield Record(copied, record.where)


_NEEDED = ("date", "from", "to", "subject", "body")


def _reason_to_drop(sender: list[str], date: str, receivers: list[str], subject: str, body: str) -> str:
    if not sender or not receivers or parsedate_tz(date) is None:
        return UNPARSABLE
    if not body.strip():
        return EMPTY
    if is_forwarded(subject, body):
        return FORWARDED
    return REPEATED if most_repeats(body) > 1 else ""


def is_forwarded(subject: str, body: str) -> bool:
    """Tell whether a message passes on another person's message.

    It does if its subject begins with Fw:, Fwd: or Forwarded: (also after Re:) or ends with "(fwd)"; if its
    body has a line "---- Forwarded by ..." or "---- Forwarded message" (which Lotus and others write, mostly
    under an unchanged subject); or if it has "-----Original Message-----", which Outlook writes above replies
    and forwards alike, while the subject does not begin with Re:. So a reply with its quoted original stays,
    as in the paper. The quoted text is still another person's, and `confide.data.readers.quotes` removes it.
    """
    if _FORWARD_SUBJECT.match(subject) or _FORWARD_BANNER.search(body):
        return True
    return _REPLY_SUBJECT.match(subject) is None and _ORIGINAL_BANNER.search(body) is not None


def most_repeats(body: str, length: int = 20) -> int:
    """Count how often the most frequent run of `length` words stands in a text; 0 if the text is shorter."""
    words = body.split()
    seen = Counter(tuple(words[start : start + length]) for start in range(len(words) - length + 1))
    return max(seen.values(), default=0)


def _address_list(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [found for item in value for found in addresses(str(item))]
    return list(addresses(str(value or "")))
