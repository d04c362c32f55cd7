"""The synthetic helpdesk: the same mails everywhere, no two alike, every secret where it is said to be."""

import hashlib
import itertools
import json
import lzma
import re
from collections import Counter

import pytest

from make_helpdesk import BUNDLED, Slot, as_jsonl, generate, luhn_digit, parse, read_tables

FACTS = {"product", "item", "other", "order", "number", "card", "n", "nn", "amount", "date"}
PATTERNS = {
    "name": r"[A-Z]\w+( [A-Z]\w+)?",
    "phone": r"(\(\d{3}\) |\d{3}[-.]|\+1 \d{3} )555[-. ]01\d\d",
    "order": r"LM-\d{7}",
    "card": r"\d{4}([ -]?)\d{4}\1\d{4}\1\d{4}",
}


@pytest.fixture(scope="module")
def mails() -> list[dict]:
    return list(generate(300))


def test_the_same_seed_gives_the_same_mails_on_every_platform() -> None:
    text = "\n".join(json.dumps(mail, sort_keys=True) for mail in generate(20, seed=3))
    # A change of the phrases changes this digest; a change of Python or of the machine must not.
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "5902ebc1557f592765e9467f9ed040cd223387170f7fef5e5c60066d7b69de8a"
    )


def test_customers_do_not_depend_on_how_many_there_are(mails: list[dict]) -> None:
    few = list(generate(30))
    assert few == mails[: len(few)]
    assert {mail["text"] for mail in generate(30, seed=1)}.isdisjoint(mail["text"] for mail in few)


def test_customers_write_between_one_and_sixty_mails_with_a_long_tail() -> None:
    counts = sorted(Counter(mail["customer"] for mail in generate(1000)).values())
    assert len(counts) == 1000
    assert counts[0] == 1
    assert 40 <= counts[-1] <= 60
    assert 3 <= counts[500] <= 5
    assert sum(counts[-200:]) > 0.5 * sum(counts)  # a fifth of the customers write most mails


def test_mails_are_numbered_and_of_readable_length(mails: list[dict]) -> None:
    for _, group in itertools.groupby(mails, key=lambda mail: mail["customer"]):
        numbers = [mail["number"] for mail in group]
        assert numbers == list(range(1, len(numbers) + 1))
    for mail in mails:
        assert 30 <= len(mail["text"].split()) <= 150
        assert mail["topic"] in read_tables().topics
        assert not re.search(r"[{|}\ue000-\uf8ff]|  | \n|\b[Aa] [AEIO][a-z]", mail["text"]), mail["text"]


def test_every_secret_stands_where_it_is_said_to(mails: list[dict]) -> None:
    kinds: Counter[str] = Counter()
    for mail in mails:
        text, found = mail["text"], mail["secrets"]
        assert 1 <= len(found) <= 4
        assert all(before["end"] <= after["start"] for before, after in itertools.pairwise(found))
        for secret in found:
            value = text[secret["start"] : secret["end"]]
            assert re.fullmatch(PATTERNS[secret["kind"]], value), (secret, value)
            kinds[secret["kind"]] += 1
        # No secret goes unsaid: whatever looks like a phone, an order or a card is marked.
        for kind in ("phone", "order", "card"):
            places = [match.span() for match in re.finditer(PATTERNS[kind], text)]
            assert places == [(s["start"], s["end"]) for s in found if s["kind"] == kind]
    assert all(kinds[kind] >= 10 for kind in PATTERNS)


def test_a_customer_keeps_name_phone_and_card(mails: list[dict]) -> None:
    full_names = []
    for _, group in itertools.groupby(mails, key=lambda mail: mail["customer"]):
        said: dict[str, set[str]] = {kind: set() for kind in PATTERNS}
        for mail in group:
            for secret in mail["secrets"]:
                said[secret["kind"]].add(mail["text"][secret["start"] : secret["end"]])
        assert len(said["phone"]) <= 1
        assert len(said["card"]) <= 1
        assert len({name.split()[0] for name in said["name"]}) <= 1
        full_names += [name for name in said["name"] if " " in name]
    assert len(set(full_names)) == len(full_names)


def test_cards_pass_the_checksum_and_are_test_cards(mails: list[dict]) -> None:
    # A published example of a valid card number, and of a broken one.
    assert luhn_digit("411111111111111") == "1"
    assert luhn_digit("7992739871") == "3"
    for mail in mails:
        for secret in mail["secrets"]:
            if secret["kind"] == "card":
                digits = re.sub(r"\D", "", mail["text"][secret["start"] : secret["end"]])
                assert digits[-1] == luhn_digit(digits[:-1])
                assert digits[:6] in ("424242", "400000", "411111", "555555")


def test_no_two_mails_are_nearly_the_same(mails: list[dict]) -> None:
    shingles = []
    for mail in mails[:800]:
        words = mail["text"].lower().split()
        shingles.append({tuple(words[place : place + 4]) for place in range(len(words) - 3)})
    for one, other in itertools.combinations(shingles, 2):
        shared = len(one & other)
        assert shared < 0.4 * (len(one) + len(other) - shared)


def test_every_phrase_can_be_filled() -> None:
    tables = read_tables()
    for name, phrases in tables.phrases.items():
        assert len(phrases) == len({str(phrase) for phrase in phrases}), name
        todo = list(phrases)
        while todo:
            for part in todo.pop():
                if isinstance(part, Slot):
                    assert part.name in FACTS | tables.phrases.keys(), (name, part)
                elif not isinstance(part, str):
                    todo += part.phrases
    for topic in tables.topics:
        assert {f"{part}.{topic}" for part in ("problem", "detail", "request")} <= tables.phrases.keys()
    for kind in tables.products:
        assert f"symptom.{kind}" in tables.phrases


def test_the_phrase_notation() -> None:
    plain, choice, end = parse("I {see|do {not|n}} it.")
    assert (plain, end) == ("I ", " it.")
    assert choice.phrases[0] == ["see"]  # type: ignore[union-attr]
    assert choice.phrases[1][0] == "do "  # type: ignore[union-attr]
    assert parse("{day}") == [Slot("day")]
    assert parse("a{|b}") == ["a", type(choice)([[], ["b"]])]  # type: ignore[call-arg,arg-type]


def test_a_file_holds_one_record_a_line() -> None:
    lines = as_jsonl(customers=12, seed=5).decode().splitlines()
    assert [json.loads(line) for line in lines] == list(generate(12, seed=5))


def test_what_is_bundled_is_what_the_script_makes() -> None:
    # Unpacked: another version of xz may pack the same text otherwise.
    assert lzma.decompress(BUNDLED.read_bytes()) == as_jsonl(), "run scripts/make_helpdesk.py"
