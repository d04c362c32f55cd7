"""Every line of what each claim does not cover, written out here: what is dropped from the sources is missed."""

import re

import pytest

from confide.cli import show_plans
from confide.planning import plan as planning
from confide.planning.plan import Size
from confide.privacy.strength import large_delta
from tests.every_claim import CASES, config, data, made, stated

EVERY_RUN = (
    "what the base model learnt in its pretraining",
    "the tokenizer and its vocabulary",
    "evaluation: losses and other metrics computed from private rows",
    "logs, progress output and timing of the run",
    "statistics of the data (counts, lengths, medians) and what was chosen from them",
    "the tuning of hyper-parameters on private rows",
    "manual screening of rows by people",
    "the same words in other units' rows (quotes, forwards, near-duplicates)",
)
TWIN = ("a non-private twin of the run: it repeats the draws and would reveal them",)
SWEEP = (
    *(line for line in EVERY_RUN if "tuning" not in line),
    "the choice of what the sweep searched, and tuning outside of it",
    "the held-out units, by whose loss the best trial was chosen",
)
SEARCHED = (
    *EVERY_RUN[:5],
    "the tuning of hyper-parameters on private rows: 12 runs were made, of which this is the best",
    *EVERY_RUN[6:],
    "the held-out units, by whose loss the best trial was chosen",
)
MASKS = (
    "what a mask tells by itself: that something which the detector marks stands there; and what is found elsewhere "
    "because of it",
    "what the rest of a row, which is public, lets one infer of its sensitive characters",
    "a secret that stands in several rows, which several units tell",
)
MISSED = (
    "sensitive text that the detector misses: it is trained on without noise, and may be recovered word for word",
)
OTHERS = (
    "a comparison with other characters in place of the sensitive ones, whose epsilon may be more than twice as large "
    "(adjacency: replace-one)",
)
LIGHT = (
    "sensitive text that the detector misses, one by one: light noise hides a share of all words on average, and a row "
    "that holds some of them has the epsilon of its own line",
)
SCREENED = (
    "sensitive text of the screened documents that neither the detector nor the person found: it is trained on without "
    "noise, and may be recovered word for word; and where rows are cut, on which text that the detector misses in "
    "other documents bears as well",
)
CRT = (
    "a secret that the detector misses in a row in which it finds nothing: it is trained on without noise",
)
SECRETS = (
    "that a secret exists, how many rows hold it and which",
    "what tells of a secret without being found: other spellings, translations, hints, rows that the tagging does not "
    "list",
    "a guesser whose chance without the model is above the priors that were asked for; the reconstruction line says "
    "what larger priors come to",
)
TAU = ("the choice of tau, where gradients of private rows were looked at",)
SCORER = (
    "rows that the model which gives perplexities has seen before: it is taken to have seen no private row",
)
SIZE = ("what the size of the noise tells of the drawn rows, and through normalisation of all rows",)

BUT_FOR_COUNTS = (
    "statistics of the data (counts, lengths, medians) and what was chosen from them, but for the counts that are "
    "released beside the model",
)

EXPECTED = {
    **dict.fromkeys(CASES, (*EVERY_RUN, *TWIN)),
    "uls, counted": (*EVERY_RUN[:4], *BUT_FOR_COUNTS, *EVERY_RUN[5:], *TWIN),
    "uls, counted, sweep": (*SWEEP[:4], *BUT_FOR_COUNTS, *SWEEP[5:], *TWIN),
    "uls, sweep": (*SWEEP, *TWIN),
    "els, replace-one, sweep": (*SWEEP, *TWIN),
    "uls, searched": (*SEARCHED, *TWIN),
    "secret": (*EVERY_RUN, *SECRETS, *TWIN),
    "secret, kl, no recall": (*EVERY_RUN, *SECRETS, *TWIN),
    "concentration": (*EVERY_RUN, *TAU, *TWIN),
    "adaptive": (*EVERY_RUN, *SCORER, *TWIN),
    "adaptive, replace-one": (*EVERY_RUN, *SCORER, *TWIN),
    "adaptive, nominal": (*EVERY_RUN, *SCORER, *SIZE, *TWIN),
    "selective": (*EVERY_RUN, *MISSED, *MASKS, *TWIN),
    "selective, zero-out": (*EVERY_RUN, *MISSED, *MASKS, *OTHERS, *TWIN),
    "selective, no recall": (*EVERY_RUN, *MISSED, *MASKS, *TWIN),
    "selective, light noise": (*EVERY_RUN, *LIGHT, *MASKS, *TWIN),
    "selective, screened": (*EVERY_RUN, *SCREENED, *MASKS, *TWIN),
    "redacted": (*EVERY_RUN, *MISSED, *MASKS, *TWIN),
    "crt": (*EVERY_RUN, *CRT, *MASKS, *TWIN),
    "crt, zero-out": (*EVERY_RUN, *CRT, *MASKS, *OTHERS, *TWIN),
}


@pytest.mark.parametrize("name", CASES)
def test_every_line_that_is_not_covered_is_there_word_for_word(name):
    found = stated(name)
    assert found.not_covered == EXPECTED[name]
    card = found.model_card_section()
    for line in EXPECTED[name]:
        assert f"- {line}" in card
        if found.notion != "none":
            assert line.rstrip(".") in " ".join(found.sentences())


# how rows were cut, and the unit in a sentence ------------------------------------------------------------------
CHUNKED = {"none", "uls", "concentration"}


@pytest.mark.parametrize("name", CASES)
def test_only_what_draws_random_chunks_speaks_of_them(name):
    found = stated(name)
    draws = name.split(",")[0] in CHUNKED
    assert ("random chunk" in found.rows_cut) == draws
    assert any("chunk" in fact for fact in found.public_facts) == draws
    chosen = stated_with(name, selection="longest") if name == "uls" else None
    if chosen is not None:
        assert "chunk" not in chosen.rows_cut + " ".join(chosen.public_facts)
    assert "text of two documents" in found.rows_cut


def stated_with(name, **changes):
    mechanism, given, tuning = CASES[name]
    return made(mechanism, given | changes, tuning)


def test_the_sentences_of_selective_training_hold_together():
    found = stated("selective")
    assert found.sentences()[0] == (
        "One unit is the sensitive characters of one row (at most 64 tokens of one document). It may contribute its "
        "row, redacted in the first phase and as it is in the second."
    )
    assert found.rows_cut == (
        "sensitive spans are replaced by one mask token each before text is tokenised; then each document is "
        "tokenised, ended by a separator and cut into rows of at most 64 tokens; no row holds text of two documents; "
        "where rows are cut, a mask counts as 3 tokens, and a row of the second phase holds the text of its redacted "
        "row"
    )


# delta beside the number of units -------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CASES)
def test_a_delta_that_is_large_for_so_many_units_is_said(name):
    found = stated(name)
    units = 600 if name.split(",")[0] in ONE_ROW else 200
    told = [line for line in found.sentences() if "their product is" in line]
    if found.notion == "none":
        assert not told
        assert found.units is None
        return
    if found.adjacency == "add-or-remove":
        # The number of units is no public fact. What batch and rate imply is: both are literals of the config.
        implied = round(found.expected_batch / found.sampling_probability[1])
        others = " ".join(line for line in found.sentences() if line not in told)
        assert found.units is None
        assert not re.search(rf"\b{units}\b", others)
        assert len(told) == (implied * found.delta > 0.01)
        assert not told or told[0].startswith(f"delta is large for about {implied} units: their product is")
        return
    assert found.units == units
    assert len(told) == (units * found.delta > 0.01)
    if told and found.delta == 1e-4:
        product, most = {200: ("0.02", "5e-05"), 600: ("0.06", "1.6e-05")}[units]
        assert told[0] == (
            f"delta is large for {units} units: their product is {product}. A program that gives away all text "
            f"of one unit, drawn by lot, with a chance of that product would be within this delta too. A delta of at "
            f"most {most} (privacy.delta) keeps the product at 0.01 or below."
        )


ONE_ROW = {"dp-sgd", "adaptive", "selective", "redacted", "crt"}


def test_a_product_of_one_in_a_hundred_is_small_and_more_is_not():
    assert large_delta(100, 1e-4) is None
    assert large_delta(1, 0.01) is None
    assert "for 1,000 units: their product is 0.13." in large_delta(1000, 1.3e-4)
    assert "their product is 0.011." in large_delta(101, 1e-4)


@pytest.mark.parametrize("adjacency", ["zero-out", "add-or-remove"])
def test_plan_and_training_warn_before_anything_is_spent(adjacency, capsys):
    """Also under add-or-remove, where the guarantee may not tell how many units there are: this is said to whoever has
    the data."""
    name = "uls" if adjacency == "zero-out" else "uls, add-or-remove"
    mechanism, given, _ = CASES[name]
    found = planning.plan(config(mechanism, **given), data(), Size(1000, 1000, 1, 8, 64)).to_json()
    assert found["warnings"] == [large_delta(200, 1e-4)]
    show_plans.plan(found)
    shown = capsys.readouterr().out
    assert "warning: delta is large for 200 units" in shown
    assert shown.count("delta is large") == 1
    quiet = planning.plan(
        config(mechanism, **given | {"delta": 1e-6}), data(), Size(1000, 1000, 1, 8, 64)
    ).to_json()
    assert quiet["warnings"] == []
