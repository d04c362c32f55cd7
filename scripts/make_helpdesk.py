"""Make the synthetic helpdesk of `confide quickstart`: mails of invented customers, with secrets at known places.

    python scripts/make_helpdesk.py    # writes src/confide/bundled/helpdesk.jsonl.xz anew

Every customer has a name, a phone, a card, a few products, a favourite trouble and a style of their own, and
writes 1 to 60 mails. A mail is put together from the tables in `helpdesk_phrases`; it depends on the
seed and the customer alone, so the first 100 customers of 2,000 are those of 100, on every platform. Nobody is
real: phone numbers lie in the fictitious range 555-0100 to 555-0199, cards in ranges set aside for tests.
"""

import hashlib
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

BUNDLED = Path(__file__).resolve().parents[1] / "src" / "confide" / "bundled" / "helpdesk.jsonl.xz"
PHRASES = Path(__file__).resolve().with_name("helpdesk_phrases")
CUSTOMERS = 2000
MOST_MAILS = 60  # of a customer
WORDS = (30, 150)  # of a mail, greeting and signature included
CARD_RANGES = ("424242", "400000", "411111", "555555")  # payment providers use these for tests
WITHOUT_APP = ("mattress", "desk", "blender")
PARTS = (  # of a mail, in their natural order
    *("first time", "again", "problem", "symptom", "reference", "detail", "when", "tried", "impact"),
    *("payment", "request", "aside", "contact", "closing"),
)
ONCE = ("reference", "payment", "contact", "first time", "again", "closing")
# A secret stands in the text as one private-use character until the end, so that style and typos pass it by.
FIRST_MARK = 0xE000
MARK = re.compile("[\ue000-\uf8ff]")

T = TypeVar("T")


class Slot(NamedTuple):
    """A place in a phrase for another table or a fact of the mail."""

    name: str


Phrase = list["str | Slot | Choice"]


class Choice(NamedTuple):
    phrases: list[Phrase]


class Draw:
    """Random choices that are the same in every version of Python: only `random()` is promised to be."""

    def __init__(self, seed: int, index: int) -> None:
        # Hashed: plain integers may collide, as Random(2) and Random(2 + 2**32) do.
        digest = hashlib.sha256(f"{seed} {index}".encode()).digest()
        self.share = Random(int.from_bytes(digest, "big")).random

    def below(self, limit: int) -> int:
        return int(self.share() * limit)

    def one(self, options: Sequence[T]) -> T:
        return options[int(self.share() * len(options))]

    def digits(self, count: int) -> str:
        return "".join(str(self.below(10)) for _ in range(count))


@dataclass(frozen=True)
class Tables:
    phrases: dict[str, list[Phrase]]
    first: list[str]
    last: list[str]
    topics: list[str]
    products: dict[str, list[str]]  # by kind


@dataclass(frozen=True)
class Customer:
    """Who they are, what they own, and how they write. Greetings and farewells are places in their tables."""

    id: str
    name: str
    phone: str
    card: str
    kinds: list[str]
    topic: str
    greetings: tuple[int, int]
    farewells: tuple[int, int]
    pet: int
    least_words: int
    most_words: int
    typos: float
    exclaims: float
    lower_case: bool
    paragraphs: bool


def generate(customers: int = CUSTOMERS, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Mails, customer by customer: {"customer", "number", "topic", "text", "secrets"}.

    `number` counts a customer's mails from 1; `secrets` is a list of {"kind": name | phone | order | card,
    "start", "end"} in characters of the text, in order of place.
    """
    for index in range(customers):
        draw = Draw(seed, index)
        customer = make_customer(index, seed, draw)
        # A long tail: half of the customers write up to 3, a few write 60. Products round alike everywhere.
        share = draw.share()
        for _ in range(3):
            share *= share
        mails = 1 + draw.below(4) + int((MOST_MAILS - 3) * share)
        desk = _Desk(customer, draw)
        for number in range(1, mails + 1):
            yield {"customer": customer.id, "number": number, **desk.mail()}


def as_jsonl(customers: int = CUSTOMERS, seed: int = 0) -> bytes:
    """Return the mails, one JSON object a line."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in generate(customers, seed))
    return "".join(lines).encode()


def main() -> None:
    BUNDLED.write_bytes(lzma.compress(as_jsonl(), preset=9 | lzma.PRESET_EXTREME))


def make_customer(index: int, seed: int, draw: Draw) -> Customer:
    tables = read_tables()
    # A stride prime to the number of names: no two customers share a name until all names are used.
    place = (index * 7919 + seed * 104_729) % (len(tables.first) * len(tables.last))
    last, first = divmod(place, len(tables.first))
    area, line = f"{2 + draw.below(8)}{draw.digits(2)}", f"01{draw.digits(2)}"
    phone = draw.one(
        [f"({area}) 555-{line}", f"{area}-555-{line}", f"+1 {area} 555 {line}", f"{area}.555.{line}"]
    )
    digits = draw.one(CARD_RANGES) + draw.digits(9)
    digits += luhn_digit(digits)
    card = draw.one([" ", "-", ""]).join(digits[place : place + 4] for place in range(0, 16, 4))
    least = draw.one([30, 30, 40, 55, 70])
    kinds, greetings, farewells = (
        list(tables.products),
        tables.phrases["greeting"],
        tables.phrases["farewell"],
    )
    return Customer(
        id=f"customer-{index:05d}",
        name=f"{tables.first[first]} {tables.last[last]}",
        phone=phone,
        card=card,
        kinds=[draw.one(kinds) for _ in range(1 + draw.below(3))],
        topic=draw.one(tables.topics),
        greetings=(draw.below(len(greetings)), draw.below(len(greetings))),
        farewells=(draw.below(len(farewells)), draw.below(len(farewells))),
        pet=draw.below(len(tables.phrases["pet"])),
        least_words=least,
        most_words=least + draw.one([25, 40, 50]),
        typos=draw.one([0, 0, 0, 0, 0.004, 0.01, 0.03]),
        exclaims=draw.one([0, 0, 0, 0.05, 0.25]),
        lower_case=draw.share() < 0.07,
        paragraphs=draw.share() < 0.5,
    )


def luhn_digit(digits: str) -> str:
    """The check digit that completes a card number (ISO/IEC 7812-1)."""
    doubled = [int(digit) * (2 - place % 2) for place, digit in enumerate(reversed(digits))]
    return str(-sum(value // 10 + value % 10 for value in doubled) % 10)


class _Desk:
    """Writes one customer's mails, one after the other."""

    def __init__(self, customer: Customer, draw: Draw) -> None:
        self.customer, self.draw, self.tables = customer, draw, read_tables()
        self.topic = self.kind = ""
        self.facts: dict[str, str] = {"order": f"LM-{draw.digits(7)}"}
        self.secrets: list[tuple[str, str]] = []
        self.used: set[tuple[str, int]] = set()

    def mail(self) -> dict[str, Any]:
        self.secrets, self.used = [], set()
        again = bool(self.topic) and self.draw.share() < 0.3
        if not again:
            self.choose_subject()
        text = self.lay_out(self.body(again))
        return {"topic": self.topic, **self.place_secrets(text + "\n" + self.signature())}

    def choose_subject(self) -> None:
        draw, products = self.draw, self.tables.products
        self.kind = draw.one(self.customer.kinds)
        self.topic = self.customer.topic if draw.share() < 0.45 else draw.one(self.tables.topics)
        if self.topic == "app" and self.kind in WITHOUT_APP:
            self.topic = "faulty"
        other = draw.one([kind for kind in products if kind != self.kind])
        self.facts |= {"item": self.kind, "product": draw.one(products[self.kind])}
        self.facts["other"] = draw.one(products[other])
        if draw.share() < 0.6:
            self.facts["order"] = f"LM-{draw.digits(7)}"

    def body(self, again: bool) -> list[str]:
        """Sentences in their natural order, as many as the customer cares to write."""
        draw, customer = self.draw, self.customer
        target = customer.least_words + draw.below(customer.most_words - customer.least_words + 1)
        parts = ["again" if again else "problem", "request", *["symptom"] * (self.topic == "faulty")]
        more = ["detail"] * 3 + ["reference"] * 3 + ["when", "aside", "request", "closing"]
        more += ["problem" if again else "first time"]
        more += ["tried", "impact", "impact"] * (self.topic not in ("praise", "stock"))
        more += ["symptom"] * (2 if self.topic in ("faulty", "warranty") else 0)
        more += ["contact"] * (draw.share() < 0.35)
        more += ["payment"] * (draw.share() < (0.5 if self.topic in ("charged", "refund") else 0.12))
        sentences = [(part, self.sentence(part)) for part in parts]
        words = sum(count_words(sentence) for _, sentence in sentences)
        while more and words < max(target, WORDS[0]):
            part = more.pop(draw.below(len(more)))
            if part in ONCE and any(part == there for there, _ in sentences):
                continue
            sentences.append((part, self.sentence(part)))
            words += count_words(sentences[-1][1])
        sentences.sort(key=lambda pair: PARTS.index(pair[0]))  # stable: equal parts keep their order
        return [sentence for _, sentence in sentences]

    def sentence(self, part: str) -> str:
        subject = {"symptom": self.kind}.get(part, self.topic)
        table = f"{part}.{subject}" if part in ("problem", "detail", "request", "symptom") else part
        text = self.fresh(table)
        if self.draw.share() < 0.08 and text.startswith(("The ", "It ", "My ", "We ", "This ", "I ")):
            pet = self.render(self.tables.phrases["pet"][self.customer.pet])
            text = f"{pet} {text if text.startswith('I ') else text[0].lower() + text[1:]}"
        text = text[0].upper() + text[1:]
        if text.endswith(".") and self.draw.share() < self.customer.exclaims:
            text = text[:-1] + "!"
        return text

    def lay_out(self, body: list[str]) -> str:
        """Greeting, paragraphs and farewell, in the customer's spelling."""
        customer, phrases = self.customer, self.tables.phrases
        greeting = self.render(phrases["greeting"][self.draw.one(customer.greetings)])
        farewell = self.render(phrases["farewell"][self.draw.one(customer.farewells)])
        middle = len(body) // 2 if customer.paragraphs and len(body) > 4 else 0
        paragraphs = [" ".join(part) for part in (body[:middle], body[middle:]) if part]
        text = "\n\n".join([greeting, *paragraphs, farewell])
        text = re.sub(r"\b([aA]) (?=[AEIO][a-z])", r"\1n ", text)  # product names that start with a vowel
        if customer.lower_case:
            text = text.lower()
        if customer.typos:
            text = " ".join(self.mistype(word) for word in text.split(" "))
        return text

    def mistype(self, word: str) -> str:
        if (
            len(word) < 4
            or not (word.isascii() and word.isalpha())
            or self.draw.share() >= self.customer.typos
        ):
            return word
        place = 1 + self.draw.below(len(word) - 2)
        before, here, after, rest = word[:place], word[place], word[place + 1], word[place + 2 :]
        return before + self.draw.one([after, here + here + after, after + here]) + rest

    def signature(self) -> str:
        """The name, or the first name, or nothing; but a mail without any secret carries the whole name."""
        share = self.draw.share()
        if share < 0.55 or not self.secrets:
            return self.secret("name", self.customer.name)
        return self.secret("name", self.customer.name.split()[0]) if share < 0.85 else ""

    def secret(self, kind: str, value: str) -> str:
        self.secrets.append((kind, value))
        return chr(FIRST_MARK + len(self.secrets) - 1)

    def place_secrets(self, marked: str) -> dict[str, Any]:
        text, places, done = "", [], 0
        for mark in MARK.finditer(marked):
            kind, value = self.secrets[ord(mark.group()) - FIRST_MARK]
            text += marked[done : mark.start()]
            places.append({"kind": kind, "start": len(text), "end": len(text) + len(value)})
            text += value
            done = mark.end()
        return {"text": (text + marked[done:]).rstrip("\n"), "secrets": places}

    def fresh(self, table: str) -> str:
        """A phrase of a table that the mail has not used yet, as long as there is one."""
        phrases = self.tables.phrases[table]
        place = self.draw.below(len(phrases))
        for _ in phrases:
            if (table, place) not in self.used:
                break
            place = (place + 1) % len(phrases)
        self.used.add((table, place))
        return self.render(phrases[place])

    def render(self, phrase: Phrase) -> str:
        out = []
        for part in phrase:
            if isinstance(part, str):
                out.append(part)
            elif isinstance(part, Choice):
                out.append(self.render(self.draw.one(part.phrases)))
            else:
                out.append(self.fill(part.name))
        return "".join(out)

    def fill(self, name: str) -> str:
        draw = self.draw
        match name:
            case "product" | "item" | "other":
                return self.facts[name]
            case "order":
                return self.secret("order", self.facts["order"])
            case "number":
                return self.secret("phone", self.customer.phone)
            case "card":
                return self.secret("card", self.customer.card)
            case "n":
                return str(2 + draw.below(8))
            case "nn":
                return str(10 + draw.below(51))
            case "amount":
                return f"${5 + draw.below(395)}.{draw.one(('00', '50', '90', '95', '99'))}"
            case "date":
                return f"{1 + draw.below(28)} {self.fill('month')}"
        return self.render(draw.one(self.tables.phrases[name]))


def count_words(text: str) -> int:
    return text.count(" ") + 1


@cache
def read_tables() -> Tables:
    """The phrase tables of `helpdesk_phrases`; their format is told at the head of each file."""
    lines: dict[str, list[str]] = {}
    for file in sorted(PHRASES.glob("*.txt")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.startswith("["):
                table = lines.setdefault(line.strip("[]"), [])
            elif line and not line.startswith("#"):
                table.append(line)
    first, last, topics = (" ".join(lines.pop(name)).split() for name in ("first", "last", "topics"))
    products = {}
    for line in lines.pop("kinds"):
        kind, names = line.split(" = ")
        products[kind] = names.split(", ")
    phrases = {name: [parse(line) for line in table] for name, table in lines.items()}
    return Tables(phrases, first, last, topics, products)


def parse(line: str) -> Phrase:
    """A line as text, slots `{word}` and choices `{a|b}`, which may stand in one another."""
    options: list[list[Phrase]] = [[[]]]  # of every open brace: its alternatives so far
    for piece in re.split(r"([{|}])", line):
        if piece == "{":
            options.append([[]])
        elif piece == "|":
            options[-1].append([])
        elif piece == "}":
            choice = options.pop()
            single = choice[0][0] if len(choice) == 1 else None
            options[-1][-1].append(Slot(single) if isinstance(single, str) else Choice(choice))
        elif piece:
            options[-1][-1].append(piece)
    return options[0][0]


if __name__ == "__main__":
    main()
