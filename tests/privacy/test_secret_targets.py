"""Priors and posteriors: whose are used, and which are refused."""

import numpy as np
import pytest

from confide.config.schema import Secrets
from confide.privacy.secret_targets import resolve
from confide.utils.errors import InputError

IDS = ["words:1", "words:7", "account:1", "rows"]


def section(folder, values=None, words=None, **keys):
    if values is not None:
        (folder / "values.csv").write_text(values)
        keys["values"] = str(folder / "values.csv")
    if words is not None:
        (folder / "words.csv").write_text(words)
        keys["words"] = str(folder / "words.csv")
    return Secrets.model_validate(keys)


def pairs(secrets, ids=IDS):
    unit, prior, posterior = resolve(secrets, ids)
    assert unit.dtype == np.int64
    assert prior.dtype == posterior.dtype == np.float64
    assert unit.shape == prior.shape == posterior.shape
    return list(zip(unit.tolist(), prior.tolist(), posterior.tolist(), strict=True))


def test_the_config_counts_for_all(tmp_path):
    assert pairs(section(tmp_path, prior=1e-6, posterior=0.01)) == [(n, 1e-6, 0.01) for n in range(4)]
    several = section(tmp_path, prior=[1e-6, 1e-3], posterior=[0.01, 0.1])
    assert pairs(several, IDS[:2]) == [(0, 1e-6, 0.01), (0, 1e-3, 0.1), (1, 1e-6, 0.01), (1, 1e-3, 0.1)]
    assert pairs(several, []) == []


def test_an_id_comes_before_its_class_and_that_before_the_config(tmp_path):
    values = "id,prior,posterior,note\nwords,1e-4,0.1,x\n\nwords:7,1e-5,0.02,\nwords:7,1e-3,0.3,\nrows,0.01,0.02,\n"
    assert pairs(section(tmp_path, values, prior=1e-6, posterior=0.01)) == [
        (0, 1e-4, 0.1),
        (1, 1e-5, 0.02),
        (1, 1e-3, 0.3),
        (2, 1e-6, 0.01),
        (3, 0.01, 0.02),
    ]


def test_a_class_reaches_its_secrets_whatever_colons_their_names_hold(tmp_path):
    ids = ["who:plain", "who:proj:0:x", "who:proj:1:x"]
    values = "id,prior,posterior\nwho,1e-6,1e-3\nwho:proj:1,1e-5,1e-2\n"
    assert pairs(section(tmp_path, values, prior=1e-6, posterior=0.5), ids) == [
        (0, 1e-6, 1e-3),
        (1, 1e-6, 1e-3),
        (2, 1e-5, 1e-2),
    ]


def test_semicolons_are_named(tmp_path):
    with pytest.raises(InputError, match="semicolons between its columns: use commas"):
        pairs(section(tmp_path, "id;prior;posterior\nwords;1e-6;1e-3\n"))


def test_the_list_of_words_may_state_values(tmp_path):
    words = "word,id,prior,posterior\nfalcon,a:1,1e-4,0.1\nkestrel,a:1,1e-4,0.1\nhawk,,,\nkite,a:2,1e-3,0.2\n"
    secrets = section(tmp_path, "id,prior,posterior\na:2,1e-5,0.5\n", words, prior=1e-6, posterior=0.01)
    assert pairs(secrets, ["a:1", "words:4", "a:2"]) == [(0, 1e-4, 0.1), (1, 1e-6, 0.01), (2, 1e-5, 0.5)]


def test_a_listed_word_that_stands_in_no_text_may_have_values(tmp_path):
    secrets = section(
        tmp_path, "id,prior,posterior\nwords:3,0.1,0.2\n", "word\nfalcon\nhawk\n", prior=0.3, posterior=0.4
    )
    assert pairs(secrets, ["words:2"]) == [(0, 0.3, 0.4)]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prior": 0.1}, r"secrets\.posterior: is missing"),
        ({"posterior": 0.1}, r"secrets\.prior: is missing"),
        ({"prior": [0.1, 0.2], "posterior": 0.3}, r"secrets\.posterior: has 1 values"),
        ({"prior": [], "posterior": []}, "has 0 values"),
        ({"prior": 0.2, "posterior": 0.2}, r"secrets\.prior: prior 0\.2 and posterior 0\.2 do not satisfy"),
        ({}, r"4 of 4 secrets have no prior and posterior \(words:1, words:7, account:1, rows\)"),
        ({"values": "id,prior,posterior\nwords,0.1,0.2\n"}, r"2 of 4 secrets .*\(account:1, rows\)"),
        ({"values": "id,prior\nwords,0.1\n"}, "has no column 'posterior'"),
        ({"values": "id,prior,posterior\n"}, "states no values"),
        ({"values": ""}, r"values\.csv is empty"),
        (
            {"values": "id,prior,posterior\nwords,1e-3,x\n"},
            r"values\.csv line 2: the posterior is not a number",
        ),
        ({"values": "id,prior,posterior\nwords,,0.1\n"}, "line 2: the prior is missing"),
        ({"values": "id,prior,posterior\nwords,nan,0.1\n"}, "line 2: prior nan"),
        (
            {"values": "id,prior,posterior\nwords,0.1,0.2\nrows,0.1,1\n"},
            "line 3: prior 0.1 and posterior 1 do",
        ),
        ({"values": "id,prior,posterior\nwords:1,0,0.2\n"}, "line 2: prior 0 and"),
        (
            {"values": "id,prior,posterior\nacount:1,0.1,0.2\n"},
            r"line 2: the id is neither a secret nor a class of secrets; did you mean 'account:1'\?",
        ),
        ({"values": "id,prior,posterior\nfalcon,0.1,0.2\n"}, "line 2: the id is neither"),
        ({"words": "word,prior,posterior\nfalcon,0.1,\n"}, r"words\.csv line 2: the posterior is missing"),
        ({"words": "word,prior,posterior\nfalcon,0.3,0.1\n"}, r"words\.csv line 2: prior 0\.3"),
    ],
)
def test_what_is_refused(tmp_path, keys, message):
    with pytest.raises(InputError, match=message) as caught:
        resolve(section(tmp_path, **keys), IDS)
    assert "falcon" not in str(caught.value)
