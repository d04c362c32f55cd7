"""Users who share rows: no owner has more than the cap, and epsilon is that of the worst of them."""

import itertools
import json
import mailbox
from email.message import EmailMessage
from pathlib import Path

import numpy as np
import pytest

from confide.config.loading import check
from confide.data.shape import Shape
from confide.models import loading as models
from confide.privacy import mechanisms
from confide.privacy.accounting import Exchanged, MixtureOfGaussians
from confide.privacy.mechanisms.statement import calibrate, state_guarantee
from confide.randomness.streams import RunKey
from confide.runs import preparation
from confide.utils.errors import InputError

STEPS, DELTA = 8, 1e-4


def config(cap: int | str = 3, batch: float = 5.0, data: dict | None = None, **privacy):
    return check(
        {
            "data": {"train": "x", "unit": ["from", "to"], "eval": None} | (data or {}),
            "privacy": {"mechanism": "owners", "rows_per_unit": cap, "delta": DELTA, "noise_multiplier": 1.5}
            | privacy,
            "train": {"steps": STEPS, "batch": batch},
        }
    )


def build(cap: int | str = 3, batch: float = 5.0, **privacy):
    return mechanisms.build(config(cap, batch, **privacy))


def shape(owners: list[list[int]]) -> Shape:
    """owners[i]: those of row i, numbers from 0."""
    units = [[row for row, own in enumerate(owners) if u in own] for u in range(1 + max(map(max, owners)))]
    counts = np.array([len(unit) for unit in units])
    offsets = np.concatenate([[0], np.cumsum(counts)])
    flat = np.array([row for unit in units for row in unit])
    return Shape(counts, len(owners), 10 * len(owners), False, offsets, flat)


def random_graph(seed: int, rows: int = 120, users: int = 25) -> list[list[int]]:
    """Mail as it is: few write much, and most rows have two to five owners."""
    generator = np.random.default_rng(seed)
    weight = 1 / np.arange(1, users + 1)
    sizes = generator.integers(1, 6, rows)
    return [generator.choice(users, n, replace=False, p=weight / weight.sum()).tolist() for n in sizes]


def loads(owners: list[list[int]], weights: np.ndarray) -> np.ndarray:
    found = np.zeros(1 + max(map(max, owners)))
    for own, weight in zip(owners, weights, strict=True):
        found[own] += weight
    return found


@pytest.mark.parametrize("bounding", ["greedy", "program"])
@pytest.mark.parametrize("cap", [1, 3, 10, 1000])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_owner_has_more_than_the_cap(bounding, cap, seed):
    owners = random_graph(seed)
    made, data = build(cap, batch=1.0, bounding=bounding), shape(owners)
    weights = made.weights(data)
    assert loads(owners, weights).max() <= cap * (1 + 1e-9)
    assert weights.min() >= 0
    assert weights.max() <= 1
    rates = made.rates(data)
    assert rates.sum() == pytest.approx(1.0)
    assert rates.max() <= 1
    if bounding == "greedy":
        assert set(weights.tolist()) <= {0.0, 1.0}
        for own, weight in zip(owners, weights, strict=True):  # none could be added
            assert weight == 1 or (loads(owners, weights)[own] == cap).any()
    if cap == 1000:
        assert (weights == 1).all()


@pytest.mark.parametrize("cap", [1, 2, 3])
def test_on_a_tiny_graph_the_program_is_the_best_there_is(cap):
    owners = random_graph(4, rows=11, users=6)
    data = shape(owners)
    choices = (np.array(bits, float) for bits in itertools.product([0, 1], repeat=len(owners)))
    best = max(kept.sum() for kept in choices if loads(owners, kept).max() <= cap)
    greedy = build(cap, bounding="greedy", batch=1.0).weights(data).sum()
    program = build(cap, bounding="program", batch=1.0).weights(data).sum()
    assert 1 <= greedy <= best <= program * (1 + 1e-6)


@pytest.mark.parametrize("bounding", ["greedy", "program"])
def test_epsilon_is_that_of_the_worst_owner(bounding):
    owners = random_graph(2, rows=40, users=9)
    settings = config(4, batch=4.0, bounding=bounding)
    data, made = shape(owners), mechanisms.build(settings)
    setting = calibrate(made, data, None, 1.5, DELTA)
    rates = made.rates(data)
    own = []
    for user in range(data.units):
        drawn = [r for r, who in zip(rates.tolist(), owners, strict=True) if user in who and r > 0]
        if drawn:
            own.append(MixtureOfGaussians.poisson_binomial(drawn, STEPS).curve(1.5).epsilon(DELTA))
    found = state_guarantee(setting, STEPS, False, settings, {"date": "today"})
    assert max(own) * 0.999 <= found.epsilon <= max(own) * 1.05
    assert min(own) < 0.95 * max(own)
    assert found.theorem
    assert found.notion == "multi-owner user-level DP"
    assert found.secret_targets == ()
    if bounding == "greedy":  # rows alike: an owner of four is a binomial
        worst = MixtureOfGaussians.binomial(4, 4.0 / rates[rates > 0].size, STEPS)
        assert found.epsilon == pytest.approx(worst.curve(1.5).epsilon(DELTA), rel=1e-3)
        assert found.rows_per_unit == 4


def test_noise_meets_the_target_for_the_worst_owner():
    data, made = shape(random_graph(2, rows=40, users=9)), build(4, noise_multiplier=None, epsilon=2.0)
    setting = calibrate(made, data, 2.0, None, DELTA)
    assert 1.99 < setting.curve().epsilon(DELTA) <= 2.0


def test_replace_one_is_two_zero_outs():
    data = shape(random_graph(2, rows=40, users=9))
    own = build(4).parameters(data).process
    assert build(4, adjacency="replace-one").parameters(data).process == Exchanged(own)


@pytest.mark.parametrize("bounding", ["greedy", "program"])
def test_a_batch_larger_than_what_is_left_names_both_keys(bounding):
    data = shape([[0, 1]] * 9 + [[2]])
    with pytest.raises(InputError, match=r"^train\.batch: .*take at most \d+, .*privacy\.rows_per_unit"):
        build(2, batch=8.0, bounding=bounding).parameters(data)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"sampling": "shuffle"}, r"privacy\.sampling"),
        ({"adjacency": "add-or-remove"}, r"privacy\.adjacency"),
        ({"selection": "random"}, r"privacy\.selection"),
        ({"noise_multiplier": None}, r"privacy\.epsilon"),
        ({"epsilon": 2.0}, r"privacy\.epsilon"),
        ({"accountant": "kl"}, r"privacy\.accountant"),
        ({"data": {"unit": None}}, r"data\.unit"),
        ({"bounding": "Program"}, r"privacy\.bounding: .*did you mean program"),
    ],
)
def test_impossible_settings_are_named(change, key):
    with pytest.raises(InputError, match=key):
        config(**change)


def test_the_median_of_the_rows_of_an_owner_is_a_cap():
    owners = random_graph(0)
    data = shape(owners)
    cap = int(np.median(data.rows_per_unit))
    assert abs(build("median").cap(data) - cap) <= 1
    assert loads(owners, build("median").weights(data)).max() <= build("median").cap(data)


# mail ---------------------------------------------------------------------------------------------------------
PEOPLE = ("ann", "bob", "cy", "dee", "eve", "flo")


def post(folder: Path, n: int = 60) -> Path:
    """An mbox: ann writes half of all mail, to one, two or three others, some of them in copy."""
    generator = np.random.default_rng(7)
    box = mailbox.mbox(folder / "mail.mbox")
    for number in range(n):
        sender = "ann" if number % 2 else str(generator.choice(PEOPLE[1:]))
        others = [name for name in PEOPLE if name != sender]
        to = generator.choice(others, int(generator.integers(1, 4)), replace=False).tolist()
        message = EmailMessage()
        message["From"] = f"{sender.title()} <{sender}@x.com>"
        message["To"] = ", ".join(f"{name}@X.com" for name in to[:2])
        if to[2:]:
            message["Cc"] = f"{to[2]}@x.com"
        message["Date"] = "Mon, 5 Jan 2026 10:00:00 +0000"
        message["Subject"] = f"number {number}"
        message.set_content(f"This is what message {number} says, and no more than that.\n")
        box.add(message)
    box.close()
    return folder / "mail.mbox"


@pytest.mark.parametrize("bounding", ["greedy", "program"])
def test_mail_belongs_to_its_sender_and_to_all_who_got_it(tmp_path, bounding):
    settings = check(
        {
            "tokenizer": "bundled",
            "data": {
                "train": str(post(tmp_path)),
                "unit": ["from", "to", "cc"],
                "text": "{subject}\n{body}",
                "eval": None,
                "max_length": 64,
                "duplicates": False,
            },
            "privacy": {
                "mechanism": "owners",
                "rows_per_unit": 5,
                "bounding": bounding,
                "noise_multiplier": 1.5,
            },
            "train": {"steps": STEPS, "batch": 3.0},
        }
    )
    graph = preparation.prepare(settings, models.load_tokenizer(settings), tmp_path / "data").train
    names = graph.unit_names()
    assert sorted(names) == [f"{name}@x.com" for name in PEOPLE]
    assert not graph.single_owner
    made = mechanisms.build(settings)
    weights = made.weights(graph.shape())
    for unit in range(graph.n_units):
        assert weights[graph.rows_of(unit)].sum() <= 5 * (1 + 1e-9)
    busiest = names.index("ann@x.com")
    assert len(graph.rows_of(busiest)) > 30
    # what is drawn: never a row of weight 0, and the owners' shares as accounted for
    sampler = made.sampler(graph, RunKey.from_text("mail"), "main", lambda: np.zeros(0))
    texts = {row.tobytes(): number for number, row in enumerate(graph.fetch(np.arange(graph.n_rows)))}
    drawn = [texts[row.tobytes()] for step in range(400) for row in sampler.draw(step).rows]
    assert (weights[drawn] > 0).all()
    share = made.rates(graph.shape())[graph.rows_of(busiest)].sum()
    held = np.isin(drawn, graph.rows_of(busiest)).sum() / 400
    assert held == pytest.approx(share, abs=5 * (share / 400) ** 0.5)
    assert len(drawn) / 400 == pytest.approx(3.0, abs=0.45)


def test_a_row_of_many_owners_counts_for_each_of_them(tmp_path):
    """Zeroing one owner out moves no row of another's that they do not share, and all that they do."""
    path = tmp_path / "text.jsonl"
    people = [["a", "b"], ["b", "c"], ["a"], ["c"], ["a", "a", "b"]]
    path.write_text(
        "".join(json.dumps({"text": f"row {i} says so", "who": who}) + "\n" for i, who in enumerate(people))
    )
    settings = config(data={"train": str(path), "unit": "who"})
    graph = preparation.prepare(settings, models.load_tokenizer(settings), tmp_path / "data").train
    found = {graph.unit_name(unit): graph.rows_of(unit).tolist() for unit in range(3)}
    assert found == {"a": [0, 2, 4], "b": [0, 1, 4], "c": [1, 3]}
    parameters = build(3, batch=2.0).parameters(graph.shape())
    assert parameters.process == MixtureOfGaussians.binomial(3, 2 / 5, STEPS)
