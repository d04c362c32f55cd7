"""Run by tests/two_ranks_all.py: ranks that each read their own part of a model's weights, against one load of it."""

from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from confide.distributed.ranks import Ranks
from confide.distributed.sharding import is_split, part, shard, whole
from confide.models import loading as models
from confide.models import sharded
from confide.runs import fingerprints, job
from confide.runs.folder import Run
from confide.runs.loop import fine_tune
from confide.utils.console import Console
from confide.utils.errors import InputError
from tests import small
from tests.models.test_loading import config
from tests.test_resume import config as run_config

LORA = {"kind": "lora", "rank": 3}
HEAD = LORA | {"modules_to_save": ["lm_head"]}
UNTIED = {"tie_word_embeddings": False}
CASES = {  # name: family, task, adapter, base, changes of the model's settings, bytes of a file
    "tied": ("gpt2", "causal-lm", {}, {}, {}, None),
    "untied, an index of several files": ("llama", "causal-lm", {}, {}, UNTIED, "60KB"),
    "rows that do not divide by two": ("llama", "causal-lm", {}, {}, {"vocab_size": 8193}, None),
    "lora": ("llama", "causal-lm", LORA, {}, {}, "60KB"),
    "lora, base in bf16": ("gemma2", "causal-lm", LORA, {"precision": "bf16"}, {}, None),
    "lora, head trained whole": ("llama", "causal-lm", HEAD, {"precision": "bf16"}, UNTIED, None),
    "lora, tied head trained whole": ("gpt2", "causal-lm", HEAD, {}, {}, None),
    "fresh head": ("qwen2", "classification", {}, {}, {}, None),
    "lora, fresh head": ("bert", "classification", LORA, {}, {}, None),
}

SMALL = 600  # bytes: most weights of these models are larger
SEEN: list[str] = []  # weights that were read part by part


def saved(folder: Path, kind: str, task: str, changes: dict, size: str | None) -> Path:
    """A model's folder; for classification without a head, which is then drawn from the seed."""
    plain = "causal-lm" if kind != "bert" else "masked-lm"
    small.saved(folder, kind, plain if task == "classification" else task, **changes)
    if size:
        model = models.load_model(config(folder, plain))
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size=size)
        assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def compared(folder: Path, case: tuple, ranks: Ranks) -> dict:
    kind, task, adapter, base, changes, size = case
    with ranks.first_ahead():
        if ranks.first:
            saved(folder, kind, task, changes, size)
    settings = config(folder, task, adapter=adapter)
    settings = settings.model_copy(update={"base": settings.base.model_copy(update=base)})
    classes = 3 if task == "classification" else None
    expected = models.load_model(settings, classes)
    model, stored = models.load_to_split(settings, classes)
    digest = fingerprints.of_weights(model, stored, ranks)
    shard(model, ranks)
    sharded.fill(model, stored, settings.model, ranks)
    given, found = (dict(one.named_parameters()) for one in (expected, model))
    assert list(given) == list(found)
    wrong = [
        name
        for name, values in given.items()
        if not torch.equal(values, whole(found[name].detach())) or values.dtype != found[name].dtype
    ]
    wrong += [name for name, p in found.items() if p.requires_grad != given[name].requires_grad]
    wrong += [
        name
        for (name, one), other in zip(expected.named_buffers(), model.buffers(), strict=True)
        if not torch.equal(one, other)
    ]
    own = sum(part(p).numel() for p in found.values())
    return {
        "wrong": wrong,
        "stored": len(stored),
        "split": all(map(is_split, found.values())),
        "share": own / sum(p.numel() for p in found.values()),
        "digest": digest == fingerprints.of_weights(expected),
        "meta": sum(p.is_meta for p in found.values()),
    }


def trained(folder: Path, adapter: dict, base: dict, ranks: Ranks) -> dict:
    """A run of a few steps, split over the ranks, beside the same run of one process and one of two whole models."""
    with ranks.first_ahead():
        if ranks.first:
            small.saved(folder / "model", "llama")
        # Little noise, and no division by its size as in AdamW: a wrong gradient would show.
        changes = {"model": str(folder / "model"), "adapter": adapter, "base": base, "train__steps": 3}
        changes |= {"privacy__noise_multiplier": 1e-3, "train__optimizer": "sgd"}
        runs = {
            "alone": (Run(run_config(folder / "alone", **changes)), Ranks()),
            "ddp": (Run(run_config(folder / "ddp", **changes)), ranks),
            "fsdp": (Run(run_config(folder / "fsdp", **changes, train__distributed="fsdp")), ranks),
        }
    for name, (run, those) in runs.items():
        SEEN.clear()
        if those is ranks or ranks.first:
            fine_tune(run, ranks=those)
        assert bool(SEEN) == (name == "fsdp")
        ranks.wait()
    if not ranks.first:
        return {}
    start = {
        name.replace(".default.", "."): values
        for name, values in models.load_model(runs["alone"][0].config).state_dict().items()
    }

    def moved(name: str) -> torch.Tensor:
        (path,) = runs[name][0].release.glob("*.safetensors")
        return torch.cat([(values - start[key]).flatten() for key, values in sorted(load_file(path).items())])

    expected = moved("alone")
    gaps = {name: float((moved(name) - expected).norm() / expected.norm()) for name in ("ddp", "fsdp")}
    return gaps | {"ledgers": len({run.ledger_path.read_text() for run, _ in runs.values()})}


def mixing(folder: Path, ranks: Ranks) -> str:
    """What this rank says of a model that looks at padding, which is seen once the model is split."""
    with ranks.first_ahead():
        if ranks.first:
            small.saved(folder / "model", "bert")
        run = Run(run_config(folder / "run", model=str(folder / "model"), train__distributed="fsdp"))
    sharded.SMALL = 40_000  # the bias of BERT's head is copied when it is tied, so it cannot be a stand-in
    try:
        job.Job.of(run, Console(quiet=True), ranks)
    except InputError as error:
        return str(error)
    finally:
        sharded.SMALL = SMALL
    return ""


def refused(folder: Path, ranks: Ranks, breaks, at: int) -> str:
    """What this rank says of a model of which rank `at` alone meets the damage."""
    with ranks.first_ahead():
        if ranks.first:
            small.saved(folder, "llama")
    model, stored = models.load_to_split(config(folder))
    shard(model, ranks)
    ranks.wait()
    if ranks.number == 0:
        breaks(folder / "model.safetensors")
    ranks.wait()
    honest = sharded.Stored.rows

    def rows(self, first, last=None):
        if at == ranks.number and breaks is nothing:
            raise OSError(5, "Input/output error")
        return honest(self, first, last)

    sharded.Stored.rows = rows
    try:
        sharded.fill(model, stored, "models/mine", ranks)
    except InputError as error:
        return str(error)
    finally:
        sharded.Stored.rows = honest
    return ""


def nothing(path: Path) -> None:
    pass


def last_is_not_finite(path: Path) -> None:
    """Spoil the last value of one weight, which lies in the second rank's part."""
    weights = load_file(path)
    weights["model.layers.1.mlp.up_proj.weight"][-1, -1] = float("nan")
    save_file(weights, path, metadata={"format": "pt"})


def find(folder: Path, ranks: Ranks) -> dict:
    filled = job.fill

    def seen(model, stored, *others):
        SEEN.extend(stored)
        filled(model, stored, *others)

    with mock.patch.object(sharded, "SMALL", SMALL):
        found: dict = {
            name: compared(folder / name.replace(" ", "-"), case, ranks) for name, case in CASES.items()
        }
        with mock.patch.object(job, "fill", seen):
            found["trained"] = trained(folder / "full", {}, {}, ranks)
            found["trained, bf16"] = trained(folder / "bf16", LORA, {"precision": "bf16"}, ranks)
            SEEN.clear()
            said = {
                "mixing": mixing(folder / "mixing", ranks),
                "mixing was split": len(SEEN) > 0,
                "not finite": refused(folder / "damaged", ranks, last_is_not_finite, 1),
                "unreadable": refused(folder / "unreadable", ranks, nothing, 1),
            }
        both: list = [None, None]
        torch.distributed.all_gather_object(both, said)
    return found | {"refused": both}
