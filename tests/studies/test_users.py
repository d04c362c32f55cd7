"""What tables of user studies write of a run: its settings, rows of a user and noise."""

import json

import pytest
from studies.runner import users


def row(settings, **more):
    return {"settings": json.dumps(settings), "noise_multiplier": 1.0, "rows_per_unit": None, **more}


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"train.learning_rate": 0.004}, "0.004"),
        ({"privacy.rows_per_unit": 5, "train.learning_rate": 0.005}, "5, 0.005"),
        (
            {"train.learning_rate": 0.004, "train.warmup": 0, "train.average.kind": "tail"},
            "learning rate 0.004, warmup 0, average tail",
        ),
        ({"train.learning_rate": 0.004, "train.average.kind": "none"}, "learning rate 0.004, average none"),
    ],
)
def test_settings_have_names_where_numbers_alone_would_not_tell(settings, written):
    assert users.chosen([row(settings), row(settings)]) == written


def test_rows_of_a_user_are_what_the_run_says_before_what_was_asked_for():
    asked = {"privacy.rows_per_unit": "median"}
    assert users.rows_of_unit([row(asked, rows_per_unit=54)]) == "54"
    assert (
        users.rows_of_unit([row({"privacy.rows_per_unit": 4}), row({"privacy.rows_per_unit": 1})]) == "1 or 4"
    )


def test_one_row_of_each_user_and_equal_noise_make_one_mechanism():
    one = {"privacy.rows_per_unit": 1}
    els = [row(one, rows_per_unit=1)]
    assert users.are_alike(els, [row(one)])
    assert not users.are_alike(els, [row(one, noise_multiplier=1.1)])
    assert not users.are_alike(els, [row({"privacy.rows_per_unit": 2})])
    both = {"privacy.rows_per_unit": 2}
    assert not users.are_alike(
        [row(both, rows_per_unit=2)], [row(both)]
    )  # rows are clipped alone or as a mean
