"""Secret protection: settings that cannot be are refused by their keys."""

import pytest

from confide.config.loading import check
from confide.privacy.mechanisms.statement import calibrate
from confide.utils.errors import InputError
from tests.privacy.mechanisms.test_secret import build, config, shape, values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"epsilon": 3.0}}, r"privacy\.epsilon: .*follows from the secrets"),
        ({"privacy": {"noise_multiplier": 3.0}}, r"privacy\.noise_multiplier: .*remove it"),
        ({"privacy": {"adjacency": "replace-one"}}, r"privacy\.adjacency: .*zero-out"),
        ({"privacy": {"adjacency": "add-or-remove"}}, r"privacy\.adjacency: .*zero-out"),
        ({"privacy": {"sampling": "shuffle"}}, r"privacy\.sampling: .*use poisson"),
        (
            {"privacy": {"sampling": "truncated"}, "train": {"max_batch": 9}},
            r"privacy\.sampling: .*use poisson",
        ),
        ({"privacy": {"selection": "random"}}, r"privacy\.selection: .*remove it"),
        ({"privacy": {"resample": True}}, r"privacy\.resample: "),
        ({"privacy": {"bounding": "program"}}, r"privacy\.bounding: is for mechanism owners"),
        ({"train": {"sampling_rate": 0.1}}, r"train\.sampling_rate: .*set train\.batch"),
        ({"secrets": {"patterns": None}}, r"secrets: .*where secrets are"),
        ({"secrets": {"posterior": None}}, r"secrets\.posterior: .*pairs"),
        ({"secrets": {"prior": None}}, r"secrets\.prior: .*pairs"),
        ({"secrets": {"prior": 0.0}}, r"secrets\.prior: 0\.0 is not valid, .*above 0"),
        ({"secrets": {"prior": 1}}, r"secrets\.prior: 1 is not valid, .*below 1"),
        ({"secrets": {"posterior": "1 %"}}, r"secrets\.posterior: '1 %' is not valid"),
        (
            {"secrets": {"posteriors": 0.1}},
            r"secrets\.posteriors: no such key, did you mean secrets\.posterior\?",
        ),
        ({"secrets": {"recall": 1.5}}, r"secrets\.recall: 1\.5 is not valid"),
        ({"secrets": {"program": {"c": 2}}}, r"secrets\.program\.c: 2 is not valid"),
        (
            {"secrets": {"program": {"c": "least noise"}}},
            r"secrets\.program\.c: .*did you mean least-noise\?",
        ),
        (
            {"privacy": {"accountant": "KL"}},
            r"privacy\.accountant: .KL. is not valid, must be one of blow-up, kl",
        ),
    ],
)
def test_impossible_settings_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        config(changes.get("privacy"), changes.get("train"), **changes.get("secrets", {}))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"secrets": {"prior": 1e-4, "posterior": 0.1}},
            r"secrets: is for mechanism secret, and this is uls",
        ),
        ({"privacy": {"accountant": "kl"}}, r"privacy\.accountant: is for mechanism secret, and this is uls"),
        (
            {"privacy": {"bounding": "program"}},
            r"privacy\.bounding: is for mechanism owners, and this is uls",
        ),
    ],
)
def test_settings_of_secrets_are_refused_elsewhere(section, message):
    raw = {"data": {"train": "x", "unit": "u"}, "privacy": {"mechanism": "uls", "epsilon": 3.0}}
    raw |= {name: raw.get(name, {}) | keys for name, keys in section.items()}
    with pytest.raises(InputError, match=message):
        check(raw)


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ({"prior": None, "posterior": None}, r"secrets\.prior: 6 of 6 secrets have no prior"),
        ({"prior": [0.1, 0.2], "posterior": 0.3}, r"secrets\.posterior: .*1 values"),
        ({"prior": 0.3, "posterior": 0.2}, r"secrets\.prior: prior 0\.3 and posterior 0\.2"),
        ({"values": "nowhere.csv"}, r"secrets\.values: nowhere\.csv: "),
    ],
)
def test_priors_and_posteriors_that_do_not_fit_are_named(secrets, message):
    with pytest.raises(InputError, match=message):
        calibrate(build(**secrets), shape())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["who:9,1e-4,0.1"], r"line 2: the id is neither a secret nor a class"),
        (["who:1,1e-4,10%"], r"line 2: the posterior is not a number"),
        (["who:1,1e-4,nan"], r"line 2: prior 0\.0001 and posterior nan"),
        (["who:1,inf,0.5"], r"line 2: prior inf"),
        (["who:1,0,0.5"], r"line 2: prior 0 and"),
        (["who:1,0.1,0.5", "who:2,0.5,0.1"], r"line 3: prior 0\.5"),
        (["who:1,0.1"], r"line 2: the posterior is missing"),
        ([], r"states no values"),
    ],
)
def test_a_table_of_values_typed_by_a_tired_person(tmp_path, lines, message):
    with pytest.raises(InputError, match=r"^secrets\.values: .*" + message):
        calibrate(build(values=values(tmp_path, *lines)), shape())
