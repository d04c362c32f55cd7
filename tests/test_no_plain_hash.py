"""No plain hash of private data stands in the ledger or in what is published: an offline oracle for guesses.

Every hash that one could make of what a run can read is looked for: of files, lines, documents, tokens, units' names
and secrets, by the usual functions, whole and in part, in hex and in base64.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.unit_graph import UnitGraph
from confide.runs.folder import Run
from confide.runs.job import Job
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from tests.test_resume import config

FUNCTIONS = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s")
SHORT = 8
"""Hex digits of a hash that is cut short."""

MANIFEST = "canaries.json"
"""The ledger commits to it by a plain hash, which hides it: a secret seed of 256 bits stands in it. It is made up."""

HEX = re.compile(r"[0-9a-f]{8,}")
WORDS = re.compile(r"[A-Za-z0-9+/_-]{11,}")


def uls(folder: Path) -> Run:
    """User-level, with canaries, held-out units and a secret key."""
    canaries = {"count": 6, "insertions": [1]}
    return Run(config(folder, privacy__published_key=None, train__steps=3, canaries=canaries))


def secrets(folder: Path) -> Run:
    """Named secrets, two of which few rows hold."""
    settings = config(folder, train__steps=3)
    words = folder.parent / "words.txt"
    words.write_text("nobody\nagain\n")
    raw = settings.model_dump(exclude_defaults=True) | {
        "privacy": {"mechanism": "secret", "delta": 1e-4},
        "secrets": {"words": str(words), "prior": 1e-3, "posterior": 0.3, "recall": 1.0},
    }
    raw["data"] = {"train": settings.data.train, "eval": 0.2, "max_length": 16, "unit": None}
    return Run(check(raw))


MADE = {"user-level": uls, "secrets": secrets}


def pieces(run: Run, job: Job) -> Iterator[bytes]:
    """Bytes that a run reads, or has in its folder."""
    source = Path(run.config.data.train)
    yield source.read_bytes()
    for line in source.read_bytes().splitlines():
        yield line
        yield line + b"\n"
        found = json.loads(line)
        for value in found.values():
            yield str(value).encode()
            yield json.dumps(value).encode()
        yield f"user:{found['user']}".encode()
        yield from (word.encode() for word in found["text"].split())
        yield json.dumps(found).encode()
        yield json.dumps(found, sort_keys=True).encode()
    yield str(source).encode()
    yield run.binding().encode()
    yield run.config.to_yaml().encode()
    yield json.dumps(job.prepared.facts).encode()
    yield json.dumps(job.prepared.facts, sort_keys=True).encode()
    for path in sorted(run.data.rglob("*")):
        if path.is_file() and path != run.data / MANIFEST:
            yield path.read_bytes()
    for graph in (job.prepared.train, job.prepared.held_out):
        if graph is not None:
            yield from of_graph(graph)
    for name in job.prepared.train.shape().names():
        yield name.encode()
        yield name.partition(":")[2].encode()


def of_graph(graph: UnitGraph) -> Iterator[bytes]:
    plain: list[bytes] = []
    graph.digest(lambda data: plain.append(bytes(data)))
    yield from plain
    yield b"".join(plain)
    yield graph.plain_digest()
    for row in graph.fetch(np.arange(graph.n_rows)):
        for kind in (row.dtype, np.int32, np.int64, np.uint16):
            yield row.astype(kind).tobytes()
        yield json.dumps(row.tolist()).encode()
        yield " ".join(map(str, row.tolist())).encode()


def hashes(data: bytes) -> Iterator[bytes]:
    for name in FUNCTIONS:
        yield hashlib.new(name, data).digest()
    for size in (8, 16, 20, 32):
        yield hashlib.blake2b(data, digest_size=size).digest()
    once = hashlib.sha256(data)
    yield hashlib.sha256(once.digest()).digest()
    yield hashlib.sha256(once.hexdigest().encode()).digest()


def starts(text: str) -> tuple[set[str], set[str]]:
    """How every run of hex digits begins, and every run of characters of base64."""
    by_hex = {found[:SHORT] for found in HEX.findall(text.lower())}
    by_64 = {found[:11].translate(str.maketrans("-_", "+/")) for found in WORDS.findall(text)}
    return by_hex, by_64


def found_in(text: str, told: Iterator[bytes]) -> list[bytes]:
    """What of these has a hash in the text. A private digest that a file holds as such counts too."""
    by_hex, by_64 = starts(text)
    low = text.lower()
    matches = []
    for data in {*told}:
        for digest in (data, *hashes(data)) if len(data) in (16, 20, 32, 64) else hashes(data):
            in_hex = digest.hex()
            in_64 = base64.b64encode(digest).decode()[:11]
            if in_hex[:SHORT] in by_hex or in_hex in low or in_64 in by_64:
                matches.append(data)
    return matches


def published(run: Run) -> Iterator[tuple[str, str]]:
    """The ledger, the guarantee, and all text that is released but what belongs to the tokenizer."""
    yield "ledger.jsonl", run.ledger_path.read_text("utf-8")
    yield "guarantee.json", run.guarantee_path.read_text("utf-8")
    for path in sorted(run.release.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".md", ".txt") and "token" not in path.name:
            yield f"release/{path.name}", path.read_text("utf-8")


@pytest.mark.parametrize("kind", MADE)
def test_nothing_that_is_written_lets_anyone_test_a_guess(tmp_path, kind):
    run = MADE[kind](tmp_path / "a")
    fine_tune(run)
    job = Job.of(run, Console(quiet=True))
    told = list(pieces(run, job))
    assert len(told) > 1000
    files = dict(published(run))
    assert {"ledger.jsonl", "guarantee.json", "release/guarantee.json", "release/README.md"} <= set(files)
    assert (
        len(starts(files["ledger.jsonl"])[0]) >= 3
    )  # there are keyed fingerprints, which are no hashes of these
    for name, text in files.items():
        assert not found_in(text, iter(told)), name


@pytest.mark.parametrize("write", ["hex", "cut short", "capitals", "base64", "in base64 for addresses"])
@pytest.mark.parametrize("function", ["md5", "sha256", "blake2b"])
def test_the_search_finds_a_hash(write, function):
    secret = b"the words of somebody"
    digest = hashlib.new(function, secret).digest()
    written = {
        "hex": digest.hex(),
        "cut short": digest.hex()[:SHORT],
        "capitals": digest.hex().upper(),
        "base64": base64.b64encode(digest).decode(),
        "in base64 for addresses": base64.urlsafe_b64encode(digest).decode().rstrip("="),
    }[write]
    assert found_in(f'{{"data": "{written}", "other": 1}}', iter([b"x", secret])) == [secret]


# faults: each is put in, and the search must find it ------------------------------------------------------------
def test_a_plain_digest_of_the_data_in_the_ledger_is_found(tmp_path, monkeypatch):
    header = Job.header
    monkeypatch.setattr(
        Job, "header", lambda self: header(self) | {"data": self.prepared.train.plain_digest().hex()}
    )
    run = uls(tmp_path / "a")
    fine_tune(run)
    job = Job.of(run, Console(quiet=True))
    assert found_in(run.ledger_path.read_text(), pieces(run, job))


def test_a_plain_hash_in_the_published_guarantee_is_found(tmp_path, monkeypatch):
    provenance = Job.provenance

    def told(self):
        plain = hashlib.sha256(Path(self.run.config.data.train).read_bytes()).hexdigest()
        return provenance(self) | {"data_sha256": plain[:12]}

    monkeypatch.setattr(Job, "provenance", told)
    run = uls(tmp_path / "a")
    fine_tune(run)
    job = Job.of(run, Console(quiet=True))
    files = dict(published(run))
    assert found_in(files["release/guarantee.json"], pieces(run, job))
    assert found_in(files["release/README.md"], pieces(run, job))
    assert not found_in(files["ledger.jsonl"], pieces(run, job))
