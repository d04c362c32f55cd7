"""A row's loss is a function of that row and the weights alone: pitfalls 11 and 27."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from confide.clipping import ClippedSum
from confide.config import registry
from confide.config.loading import check
from confide.models import loading as models
from confide.models.fast import switch as fast
from confide.randomness.streams import RunKey
from confide.training.tasks import IGNORE
from confide.training.tasks.masked_lm import MaskedLM
from tests import small

KEY = RunKey.from_text("test")
CASES = [
    *[(kind, "causal-lm") for kind in ("gpt2", "llama", "qwen2", "gemma2")],
    *[(kind, "masked-lm") for kind in ("bert", "roberta")],
    *[(kind, "classification") for kind in small.FAMILIES if kind != "gemma2"],
]
LENGTHS = (7, 2, 30, 1, 12, 12)  # gemma2's window here is 8


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    found = {}

    def one(kind, task, precision="float32"):
        if (kind, task) not in found:
            path = small.saved(tmp_path_factory.mktemp("m") / "m", kind, task, num_labels=3)
            data = {
                "train": "x",
                "unit": "u",
                "max_length": 32,
                "label": "l" if task == "classification" else None,
            }
            settings = check(
                {"model": str(path), "tokenizer": "bundled", "task": task, "data": data} | EPSILON
            )
            tokenizer = models.load_tokenizer(settings)
            found[kind, task] = models.load_model(settings, 3 if data["label"] else None), tokenizer
        model, tokenizer = found[kind, task]
        return model, registry.task(task).of(model, tokenizer, precision)

    return one


EPSILON = {"privacy": {"epsilon": 4.0}}


def rows_of(lengths=LENGTHS, pad=1, seed=0):
    """Rows in which the padding id is also an ordinary token, as where the separator pads."""
    generator = np.random.default_rng(seed)
    rows = [generator.integers(5, small.TOKENS, n) for n in lengths]
    for row in rows:
        row[len(row) // 2 : len(row) // 2 + (len(row) > 4)] = pad
    return rows


def labels_of(task, n):
    return np.arange(n) % 3 if task.facts.has_classes else None


def hide_of(task, numbers):
    return [KEY.stream("test", "hide", i) for i in numbers] if task.facts.hides_tokens else None


def collate(task, rows, numbers=None):
    numbers = list(range(len(rows))) if numbers is None else numbers
    labels = labels_of(task, max(numbers) + 1)
    chosen = None if labels is None else labels[numbers]
    return task.collate([rows[i] for i in numbers], chosen, hide_of(task, numbers))


def plain_loss(model, task, batch, i, length):
    """The textbook loss of one row, by itself, without padding and with the model's own defaults."""
    ids = batch["input_ids"][i : i + 1, :length]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0].double()
    if task.facts.has_classes:
        return -logits.log_softmax(-1)[batch["labels"][i]].item()
    if task.facts.is_causal:
        pairs = [(t, ids[0, t + 1].item()) for t in range(length - 1)]
    else:
        pairs = [(t, batch["labels"][i, t].item()) for t in range(length) if batch["labels"][i, t] != IGNORE]
    losses = [-logits[t].log_softmax(-1)[target].item() for t, target in pairs]
    return sum(losses) / len(losses) if losses else 0.0


@pytest.mark.parametrize(("kind", "task_kind"), CASES)
def test_row_loss_is_the_textbook_loss_of_each_row_alone(load, kind, task_kind):
    """With padding, the pad id inside rows, and rows of one token; causal models are run without a mask."""
    model, task = load(kind, task_kind)
    model.train()
    rows = rows_of()
    batch = collate(task, rows)
    with torch.no_grad():
        got = task.row_loss(model, batch)
    assert got.shape == (len(rows),)
    for i, row in enumerate(rows):
        expected = plain_loss(model, task, batch, i, len(row))
        assert got[i].item() == pytest.approx(expected, abs=2e-5), i
    if task_kind != "classification":
        assert got[3] == 0.0  # one token predicts nothing


@pytest.mark.parametrize(("kind", "task_kind"), CASES)
def test_a_rows_loss_does_not_depend_on_the_rows_beside_it(load, kind, task_kind):
    model, task = load(kind, task_kind)
    model.train()
    rows = rows_of()
    with torch.no_grad():
        together = task.row_loss(model, collate(task, rows))
        backwards = task.row_loss(model, collate(task, rows, list(range(len(rows)))[::-1])).flip(0)
        alone = torch.cat([task.row_loss(model, collate(task, rows, [i])) for i in range(len(rows))])
        pairs = torch.cat([task.row_loss(model, collate(task, rows, [i, 2]))[:1] for i in range(len(rows))])
    for other in (backwards, alone, pairs):
        assert torch.allclose(together, other, atol=1e-5)


# The others read off the padding id, which collate always writes, where positions begin or where a row ends.
BLIND = [*CASES[:4], ("bert", "masked-lm"), ("bert", "classification")]


@pytest.mark.parametrize(("kind", "task_kind"), BLIND)
def test_what_stands_in_the_padding_never_reaches_a_loss_or_gradient(load, kind, task_kind):
    """Causal models see no attention mask: the tokens after a row's end must not reach back."""
    model, task = load(kind, task_kind)
    rows = rows_of()
    batch = dict(collate(task, rows))
    noise = torch.randint(
        5, small.TOKENS, batch["input_ids"].shape, generator=torch.Generator().manual_seed(1)
    )
    found: list = []
    for ids in (batch["input_ids"], torch.where(batch["real"], batch["input_ids"], noise)):
        model.zero_grad()
        losses = task.row_loss(model, batch | {"input_ids": ids})
        losses.sum().backward()
        found.append((losses.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    model.zero_grad()
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    for name, value in found[0][1].items():
        assert torch.allclose(value, found[1][1][name], atol=1e-5), name


@pytest.mark.parametrize(("kind", "task_kind"), CASES)
def test_token_losses_count_what_is_predicted(load, kind, task_kind):
    model, task = load(kind, task_kind)
    rows = rows_of()
    batch = collate(task, rows)
    with torch.no_grad():
        loss, counted, correct = task.token_losses(model, batch)
        mean = task.row_loss(model, batch)
    assert loss.shape == counted.shape == correct.shape
    expected = {
        "causal-lm": [len(row) - 1 for row in rows],
        "classification": [1] * len(rows),
        "masked-lm": (batch["labels"] != IGNORE).sum(1).tolist() if task_kind == "masked-lm" else None,
    }[task_kind]
    assert counted.sum(1).tolist() == expected
    assert bool((loss[~counted] == 0).all())
    assert torch.allclose(loss.sum(1), mean * counted.sum(1).clamp(min=1), atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_output_layer_of_a_masked_model_runs_where_tokens_are_hidden(load, kind):
    model, task = load(kind, "masked-lm")
    batch, seen = collate(task, rows_of()), []
    head = model.get_output_embeddings()
    handle = head.register_forward_hook(lambda module, given, output: seen.append(tuple(output.shape[:2])))
    most = int((batch["labels"] != IGNORE).sum(1).max())
    sums = []
    try:
        for switch in (nullcontext, fast.off):
            clipped = ClippedSum(model, task.packed_loss, 0.05)
            with switch():
                norms = clipped.add(batch, torch.arange(len(LENGTHS)), torch.ones(len(LENGTHS)))
            sums.append((norms, clipped.take()))
    finally:
        handle.remove()
    assert most <= 8 < max(LENGTHS)
    assert seen == [(len(LENGTHS), 8), (len(LENGTHS), max(LENGTHS))]
    (norms, found), (same, expected) = sums
    assert torch.allclose(norms, same, rtol=5e-4)  # each is rounded up, by a bound on its own error
    assert norms.gt(0.05).sum() > 1  # or nothing would be clipped
    for name, values in expected.items():
        assert float((found[name] - values).norm()) <= 5e-4 * float(values.norm()) + 1e-9, name


class Lined(torch.nn.Module):
    """A masked model whose output layer gets the tokens of all rows in one line."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(small.VOCABULARY, 8), torch.nn.Linear(8, small.VOCABULARY)

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, attention_mask):
        logits = self.head(self.embed(input_ids).flatten(0, 1)).unflatten(0, input_ids.shape)
        return type("Output", (), {"logits": logits})


def test_other_output_layers_run_everywhere():
    task, model = replace(small.task("masked-lm"), extra=frozenset()), Lined()
    rows = [row % small.VOCABULARY for row in rows_of()]
    batch = collate(task, rows)
    logits = model(batch["input_ids"], batch["real"]).logits
    expected = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
    counts = (batch["labels"] != IGNORE).sum(1)
    assert counts.sum() > 0
    means = expected.view(batch["labels"].shape).sum(1) / counts.clamp(min=1)
    assert torch.allclose(task.row_loss(model, batch), means)


def test_correct_is_the_most_likely_token():
    class Fixed(torch.nn.Module):
        def forward(self, input_ids, position_ids):
            logits = functional.one_hot((input_ids + 1) % small.VOCABULARY, small.VOCABULARY).float()
            return type("Output", (), {"logits": 5 * logits})

    task = small.task()
    batch = task.collate([np.array([3, 4, 5, 9]), np.array([7, 8])])
    _, counted, correct = task.token_losses(Fixed(), batch)
    assert correct[counted].tolist() == [True, True, False, True]
    right = -torch.tensor([5.0] + [0.0] * (small.VOCABULARY - 1)).log_softmax(0)[0]
    assert torch.allclose(task.row_loss(Fixed(), batch)[1], right)


@pytest.mark.parametrize(
    ("kind", "task_kind", "extra"),
    [
        ("gpt2", "causal-lm", {"position_ids"}),  # GPT-2's token types are its words: none are given
        ("llama", "causal-lm", {"position_ids"}),
        ("gemma2", "causal-lm", {"position_ids"}),
        ("bert", "masked-lm", {"position_ids", "token_type_ids"}),
        ("roberta", "masked-lm", {"token_type_ids"}),
        ("roberta", "classification", {"token_type_ids"}),
    ],
)
def test_positions_and_types_are_given_per_row_where_a_model_takes_them(load, kind, task_kind, extra):
    _, task = load(kind, task_kind)
    assert task.extra == extra
    batch = collate(task, rows_of())
    shape = batch["input_ids"].shape
    for name in ("position_ids", "token_type_ids"):
        assert (name in batch) == (name in extra)
    if "position_ids" in extra:
        assert torch.equal(batch["position_ids"], torch.arange(shape[1]).expand(shape))
    if "token_type_ids" in extra:
        assert not batch["token_type_ids"].any()


def test_roberta_numbers_its_own_positions_from_behind_its_padding_id(load):
    """Given 0..T-1 it would read embeddings of the wrong positions."""
    model, task = load("roberta", "masked-lm")
    seen = []
    table = model.roberta.embeddings.position_embeddings
    handle = table.register_forward_hook(lambda module, args, output: seen.append(args[0].clone()))
    with torch.no_grad():
        task.row_loss(model, task.collate([np.arange(5, 9), np.arange(5, 7)], None, hide_of(task, [0, 1])))
    handle.remove()
    assert seen[0].tolist() == [[2, 3, 4, 5], [2, 3, 1, 1]]


def masked(n=4000, length=24, seed=0, key=KEY):
    task = MaskedLM(0, 1, small.VOCABULARY, (0, 1, 2), frozenset(), False, torch.device("cpu"))
    generator = np.random.default_rng(seed)
    rows = [generator.integers(2, small.VOCABULARY, length) for _ in range(n)]
    hide = [key.stream("test", "hide", i) for i in range(n)]
    return task, rows, hide, task.collate(rows, None, hide)


def test_masked_lm_hides_15_percent_of_which_80_masked_10_random_10_kept():
    """Devlin et al. 2019, section 3.1."""
    task, rows, _, batch = masked()
    original, shown = torch.from_numpy(np.stack(rows)), batch["input_ids"]
    chosen = batch["labels"] != IGNORE
    open_ = original != 2
    assert not chosen[~open_].any()
    n = int(open_.sum())
    assert int(chosen.sum()) / n == pytest.approx(0.15, abs=5 * (0.15 * 0.85 / n) ** 0.5)
    m = int(chosen.sum())
    spread = 5 * (0.1 * 0.9 / m) ** 0.5
    assert (shown[chosen] == task.mask).double().mean() == pytest.approx(
        0.8 + 0.1 / small.VOCABULARY, abs=2 * spread
    )
    kept = (shown == original)[chosen].double().mean()
    assert kept == pytest.approx(0.1 + 0.1 / small.VOCABULARY, abs=spread)
    assert torch.equal(batch["labels"][chosen], original[chosen])
    assert torch.equal(shown[~chosen], original[~chosen])
    changed = shown[chosen & (shown != original) & (shown != task.mask)]
    assert len(set(changed.tolist())) >= small.VOCABULARY - 2  # any token may come instead


def test_masked_lm_never_hides_special_or_padded_tokens():
    task = masked(1)[0]
    rows = [np.array([0, 5, 6, 1]), np.array([1, 2, 0, 2, 1, 0, 2]), np.arange(3, 40)]
    for repeat in range(300):
        streams = [KEY.stream("test", "hide", repeat, str(i)) for i in range(3)]
        batch = task.collate(rows, None, streams)
        assert (batch["labels"][0, [0, 3]] == IGNORE).all()
        assert (batch["labels"][1] == IGNORE).all()
        assert torch.equal(batch["input_ids"][1, :7], torch.from_numpy(rows[1]))
        assert (batch["labels"][~batch["real"]] == IGNORE).all()
        assert (batch["input_ids"][~batch["real"]] == task.pad).all()


def test_what_is_hidden_follows_the_rows_own_stream_alone():
    task, rows, hide, batch = masked(50)
    again = masked(50)[-1]
    assert torch.equal(batch["labels"], again["labels"])
    assert torch.equal(batch["input_ids"], again["input_ids"])
    other = masked(50, key=RunKey.from_text("another"))[-1]
    assert not torch.equal(batch["labels"], other["labels"])
    assert not torch.equal(batch["labels"][0] == IGNORE, batch["labels"][1] == IGNORE)
    wide = [*rows[:3], np.arange(3, 39)]
    company = task.collate(wide, None, [*hide[:3], KEY.stream("x", "y")])
    assert torch.equal(company["labels"][:3, : batch["labels"].shape[1]], batch["labels"][:3])


def test_a_task_without_its_labels_or_streams_is_an_error():
    task, rows, hide, _ = masked(2)
    with pytest.raises(ValueError, match="stream"):
        task.collate(rows)
    with pytest.raises(ValueError, match="stream"):
        task.collate(rows, None, hide[:1])
    with pytest.raises(ValueError, match="labels"):
        small.task("classification").collate(rows)


@pytest.mark.parametrize(
    ("kind", "task_kind"), [("gpt2", "causal-lm"), ("llama", "causal-lm"), ("bert", "masked-lm")]
)
def test_bf16_is_close_to_float32_and_not_the_same(load, kind, task_kind):
    model, exact = load(kind, task_kind)
    _, rough = load(kind, task_kind, "bf16")
    batch = collate(exact, rows_of())
    with torch.no_grad():
        a, b = exact.row_loss(model, batch), rough.row_loss(model, batch)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert torch.allclose(a, b, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_mask_is_read_but_never_predicted(load, kind):
    """The loss of a row is that of its other tokens, and does not depend on what the model says of masks."""
    model, task = load(kind, "causal-lm")
    rows = rows_of((9, 6, 3))
    for row, places in zip(rows, ([0, 3, 4, 8], [], [1, 2]), strict=True):
        row[places] = task.mask
    batch = collate(task, rows)
    with torch.no_grad():
        loss, counted, _ = task.token_losses(model, batch)
        got = task.row_loss(model, batch)
        logits = model(batch["input_ids"]).logits
    assert counted.sum(1).tolist() == [5, 5, 0]
    assert got[2] == 0
    for i in (0, 1):
        losses = [
            -logits[i, t].log_softmax(-1)[rows[i][t + 1]].item()
            for t in range(len(rows[i]) - 1)
            if rows[i][t + 1] != task.mask
        ]
        assert got[i].item() == pytest.approx(sum(losses) / len(losses), abs=2e-5)
    assert not loss[:, :-1][(batch["input_ids"][:, 1:] == task.mask)].any()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_no_mask_is_hidden_and_so_none_is_predicted(load, kind):
    _, task = load(kind, "masked-lm")
    rows = rows_of((30,) * 40)
    for row in rows:
        row[::2] = task.mask
    labels = collate(task, rows)["labels"]
    assert (labels != IGNORE).sum() > 20
    assert not (labels == task.mask).any()
