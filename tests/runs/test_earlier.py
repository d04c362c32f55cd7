"""A base model that a run has moved before: where it read the same people, two claims add up."""

import json

import pytest

from confide.runs.earlier import earlier_run, note
from tests import small
from tests.integrations.test_trainer import trainer
from tests.integrations.world import made


def test_a_model_that_was_moved_by_this_program_is_known():
    model = small.gpt2()
    assert earlier_run(model, b"before", "gpt2") is None
    note(model, b"before")
    assert "of this program" in earlier_run(model, b"after", "gpt2")
    assert earlier_run(model, b"before", "gpt2") is None  # its weights were put back
    assert earlier_run(small.gpt2(), b"after", "gpt2") is None


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        (
            {"notion": "user-level DP", "epsilon": 8, "delta": 1e-5},
            "user-level DP with epsilon 8 at delta 1e-05",
        ),
        ({"notion": "none", "epsilon": None}, "without privacy"),
        ({"notion": "(p, r)-secret protection", "epsilon": None}, "((p, r)-secret protection)"),
        ({"another": "file"}, None),
        (None, None),
    ],
)
def test_a_guarantee_beside_the_weights_is_read(tmp_path, claim, words):
    if claim is not None:
        (tmp_path / "guarantee.json").write_text(json.dumps(claim))
    found = earlier_run(small.gpt2(), b"", str(tmp_path))
    assert found is None if words is None else words in found


def test_the_second_claim_names_the_first(tmp_path):
    """Two more epochs from what was released cost twice, and the second run counts once."""
    model = made()
    first = trainer(tmp_path / "one", model=model)
    first.train()
    first.save_model(str(tmp_path / "saved"))
    for name, again in (("two", model), ("three", type(model).from_pretrained(tmp_path / "saved"))):
        second = trainer(tmp_path / name, model=again)
        second.train()
        lines = [line for line in second.guarantee.not_covered if "earlier run" in line]
        assert len(lines) == 1, name
    assert not any("earlier run" in line for line in first.guarantee.not_covered)
