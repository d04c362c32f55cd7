"""What a run's draws and noise are bound to. Pitfalls 15, 30.

The values written out here are those of runs that people have: a test that fails tells that no such run could be
resumed, and that no published table would repeat.
"""

import json
from dataclasses import fields, replace

import pytest
from pydantic import Field, create_model

from confide.config.data_section import Data
from confide.config.loading import check
from confide.privacy.correlated_noise import Banded, Buffered
from confide.privacy.mechanisms.concentration import ConcentrationAggregation
from confide.privacy.mechanisms.values import Aggregation
from confide.runs import folder as runs
from confide.runs.folder import Run

RAW = {
    "model": "some/model",
    "data": {"train": "text.jsonl", "unit": "user", "max_length": 64},
    "privacy": {"mechanism": "uls", "epsilon": 3.0, "rows_per_unit": 2},
    "adapter": {"kind": "lora", "rank": 32},  # 32 is the default, as uls is
    "train": {"steps": 10, "batch": 5, "optimizer": "adamw", "checkpoint_every": 2, "micro_tokens": 512},
    "run": "runs/x",
}
BOUND = {
    "model": "some/model",
    "data": {"unit": "user", "max_length": 64},
    "privacy": {"epsilon": 3.0, "rows_per_unit": 2},
    "adapter": {"kind": "lora"},
    "train": {"steps": 10, "batch": 5.0},
}


def changed(section: str, **values: object) -> dict[str, object]:
    return RAW | {section: dict(RAW[section]) | values}


def test_a_key_is_bound_to_the_settings_that_differ_from_their_defaults():
    assert json.loads(Run(check(RAW)).binding()) == BOUND


@pytest.mark.parametrize(
    "other",
    [
        changed("data", max_length=65),
        changed("data", unit="sender"),
        changed("privacy", rows_per_unit=3),
        changed("train", seed=1),
        changed("train", optimizer="tensor-adamw"),
        changed("adapter", rank=16),
        changed("adapter", kind="full"),
        RAW | {"model": "another/model"},
    ],
)
def test_every_other_setting_gives_another_key(other):
    assert Run(check(other)).binding() != Run(check(RAW)).binding()


def test_a_config_that_leaves_out_a_default_that_changed_has_another_key_than_before():
    """Else a run of the former default and one of the new default would have the same noise."""
    unstated = RAW | {"train": {name: value for name, value in RAW["train"].items() if name != "optimizer"}}
    bound = json.loads(Run(check(unstated)).binding())
    assert bound == BOUND | {"train": BOUND["train"] | {"optimizer": "tensor-adamw"}}
    assert Run(check(unstated)).binding() == Run(check(changed("train", optimizer="tensor-adamw"))).binding()


@pytest.mark.parametrize(
    "same",
    [
        changed("data", train="elsewhere.jsonl", eval="held-out.jsonl"),
        changed("data", clean="none"),  # the default, written out
        changed("train", batch=5.0, checkpoint_every=3, distributed="fsdp", eval_every=4),
        RAW | {"run": "runs/y"},
    ],
)
def test_where_a_run_lies_and_what_is_a_default_changes_nothing(same):
    assert Run(check(same)).binding() == Run(check(RAW)).binding()


def test_a_setting_that_a_later_version_adds_changes_no_draw():
    later = create_model("Later", __base__=Data, added=(str, Field("as before")))
    values = check(RAW).data.model_dump()
    assert runs._chosen(later(**values), set()) == runs._chosen(check(RAW).data, set())
    assert runs._chosen(later(**values, added="new"), set()) == runs._chosen(check(RAW).data, set()) | {
        "added": "new"
    }


def test_noise_is_bound_to_numbers_and_not_to_names():
    aggregation = Aggregation(1.5, 0.8, 0.125, correlation=Banded(2))
    assert (
        aggregation.binding() == b"clip norm, noise multiplier, scale, bands: 0x1.8000000000000p+0 "
        b"0x1.999999999999ap-1 0x1.0000000000000p-3 2"
    )
    assert replace(aggregation, correlation=Banded(2, 0.625)).binding() == (
        aggregation.binding() + b" exponent 0x1.4000000000000p-1"
    )
    independent = replace(aggregation, correlation=Banded())
    assert replace(aggregation, correlation=Buffered(3)).binding() == independent.binding() + b" buffers 3"
    scaled = replace(aggregation, scales=(("wte", 2.0), ("h.0", 0.5)))
    of_both = b" scales 'h.0' 0x1.0000000000000p-1, 'wte' 0x1.0000000000000p+1"
    assert scaled.binding() == aggregation.binding() + of_both
    assert replace(scaled, scales=scaled.scales[::-1]).binding() == scaled.binding()
    common = replace(scaled, common_tokens=0.25)
    assert common.binding() == scaled.binding() + b" common tokens 0x1.0000000000000p-2"
    filtering = ConcentrationAggregation(None, 0.8, 0.125, 0.5, 20, 4.0)
    assert (
        filtering.binding() == b"clip norm, noise multiplier, scale, bands: none 0x1.999999999999ap-1 "
        b"0x1.0000000000000p-3 1; tau, users, epsilon: 0x1.0000000000000p-1 20 0x1.0000000000000p+2"
    )


@pytest.mark.parametrize(
    "made",
    [
        Aggregation(1.5, 0.8, 0.125, correlation=Banded(2)),
        ConcentrationAggregation(None, 0.8, 0.125, 0.5, 20, 4.0),
    ],
)
def test_noise_is_bound_to_every_field(made):
    for field in fields(made):
        value = getattr(made, field.name)
        if field.name == "scales":
            changed = [(("wte", 2.0),)]
        elif field.name == "correlation":
            changed = [Banded(3), Banded(2, 0.6), Buffered(2), Buffered(3)]
        else:
            changed = [2.0 if value is None else 2 * value or 0.25]
        found = {replace(made, **{field.name: each}).binding() for each in changed} | {made.binding()}
        assert len(found) == len(changed) + 1, field.name
