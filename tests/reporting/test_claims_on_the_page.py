"""Every line of a claim stands on the page, for every mechanism, in words that people read."""

import dataclasses
import html
import json
import re
from functools import cache

import pytest
import textstat

from confide.privacy.guarantee import PUBLISHED_KEY, Guarantee
from confide.privacy.mechanisms.tuned import UncountedSweep
from confide.privacy.strength import MISSED, TAUGHT
from confide.reporting.claim_lines import lines
from confide.reporting.facts import Facts
from confide.reporting.page import page
from confide.reporting.verdict import STRONG, VERDICTS, advice, answers, strength
from confide.utils.rounding import at_least, at_most, one_in_at_least, one_in_at_most, percent_at_most
from tests.every_claim import CASES, stated

NAMES = list(CASES)


@cache
def facts(name: str) -> Facts:
    return Facts("mail", stated(name), "bundled", "causal-lm", checked=True)


@cache
def shown(name: str) -> str:
    """The words of the page, as a reader sees them."""
    body = page(facts(name)).partition("<main>")[2].partition("<script>")[0]
    apart = re.sub(r"</(?:dt|dd|th|td|p|li|h\d)>", " ", body)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", apart)))


def plain(text: str) -> str:
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_a_claim_is_on_its_page(name):
    claim, seen = stated(name), shown(name)
    kind = claim.notion if claim.notion != "none" else "There is no claim. Nothing is protected."
    for text in (kind, claim.unit, claim.contribution, claim.rows_cut, claim.worlds, claim.adjacency):
        assert plain(text) in seen
    for texts in (
        claim.public_facts,
        claim.not_covered,
        claim.evidence,
        claim.estimates,
        claim.plain_words(),
    ):
        for text in texts:
            assert plain(text) in seen
    for texts in (claim.trust, claim.randomness):
        for part in texts.split("; "):
            assert plain(part)[1:].rstrip(".") in seen
    assert plain(claim.protected_output)[1:].rstrip(".") in seen
    for key, value in claim.provenance.items():
        assert f"{key} {value}" in seen
    numbers = {
        "epsilon": at_most(claim.epsilon, 6),
        "delta": at_most(claim.delta, 6),
        "noise multiplier": at_least(claim.noise_multiplier, 6),
        "steps": f"{claim.steps:,}",
        "expected batch": claim.batch_in_words,
        "advantage of the best test": at_most(claim.advantage),
        "found at 1% false alarms": percent_at_most(claim.true_positive_rate),
        "discretisation": f"{claim.discretisation:g}",
        "sampling that the computation assumes": claim.sampling,
        "sampling that the run used": claim.sampling_used,
        "accountant": f"{claim.accountant} {claim.accountant_version}",
        "clip norm": "nothing is clipped" if claim.clip_norm is None else f"{claim.clip_norm:.6g}",
        "rows of a unit": "all that it has" if claim.rows_per_unit is None else f"{claim.rows_per_unit:,}",
    }
    for key, value in numbers.items():
        assert plain(f" {key} {value} ") in seen
    for prior, bound in (*claim.reconstruction, *claim.secret_targets):
        assert f"{one_in_at_least(prior)} {one_in_at_most(bound)}" in seen
    for secret, prior, asked, most in claim.closest_secrets:
        row = f"{secret} {one_in_at_least(prior)} {one_in_at_most(asked)} {one_in_at_most(most)}"
        assert row in seen
    if claim.curve and claim.epsilon:
        for epsilon, delta in claim.curve:
            assert f"{at_most(delta, 2)} {at_most(epsilon)}" in seen
    for what, value in claim.epsilons:
        assert plain(f"epsilon {what} {at_most(value)}") in seen
    if claim.bands > 1:
        assert f"noise is correlated over {claim.bands} steps" in seen
    if claim.buffers:
        assert f"noise is correlated over all later steps ({claim.buffers} buffers)" in seen


def test_no_field_of_a_claim_is_forgotten():
    """A field that is added to the claim must be added to the page and to the test above."""
    on_page = {
        *"notion unit rows_per_unit contribution rows_cut adjacency public_facts epsilon delta curve".split(),
        *"reconstruction advantage true_positive_rate noise_multiplier clip_norm steps sampling".split(),
        *"sampling_used expected_batch sampling_probability accountant accountant_version".split(),
        *"discretisation protected_output not_covered trust randomness provenance evidence estimates".split(),
        *"secret_targets closest_secrets bands buffers epsilons worlds units words".split(),
    }
    assert {field.name for field in dataclasses.fields(stated("uls"))} == on_page


@pytest.mark.parametrize("name", NAMES)
def test_the_twelve_lines_stand_in_order_and_none_is_empty(name):
    found = lines(stated(name))
    assert len(found) == 12
    places = [shown(name).index(line.title) for line in found]
    assert places == sorted(places)
    assert all(line.sentences or line.pairs or line.items or line.tables for line in found)


def test_the_verdict_never_sounds_better_than_the_claim():
    for name in NAMES:
        claim = stated(name)
        who, whom, how, _ = answers(facts(name))
        words = " ".join((how.short, *how.sentences))
        assert ("proved" in how.short.lower()) == claim.theorem, name
        assert ("estimated" in words) == (not claim.theorem and claim.notion != "none"), name
        if claim.notion == "none":
            assert who.short == whom.short == "Nobody"
            assert how.short == "Not at all"
        elif "Strongly" in how.short:
            assert claim.epsilon <= STRONG
        said = " ".join(advice(facts(name)))
        for sentence in claim.weakness():
            assert sentence in said, name
        if not claim.theorem:
            assert "not proved" in said or claim.notion == "none", name
        if claim.notion in ("selective DP", "confidentiality", "(p, r)-secret protection"):
            assert "All other text is not protected" in " ".join(who.sentences)


def test_a_published_key_protects_from_nobody_and_the_page_says_so_first():
    claim = dataclasses.replace(stated("uls"), estimates=(PUBLISHED_KEY,), words=())
    _, whom, how, _ = answers(dataclasses.replace(facts("uls"), guarantee=claim))
    assert whom.short == "From nobody who knows the key"
    assert "estimated" in how.short
    assert advice(dataclasses.replace(facts("uls"), guarantee=claim))[0].startswith(
        "Do not hand this model on."
    )


def test_a_test_of_two_texts_is_not_told_as_one_of_use():
    for name in NAMES:
        claim, words = stated(name), " ".join(answers(facts(name))[2].sentences)
        if claim.notion != "none":
            assert ("names units whose text was used" in words) == (claim.adjacency != "replace-one"), name


def test_a_refuted_claim_keeps_no_good_word():
    refuted = dataclasses.replace(facts("uls"), refuted=True)
    words = " ".join(f"{answer.short} {' '.join(answer.sentences)}" for answer in answers(refuted)[2:3])
    assert "Refuted" in words
    assert "proved" not in words
    assert advice(refuted)[0].startswith("Do not hand this model on.")
    assert len(advice(refuted)) == 1


def test_what_an_audit_found_is_said_in_plain_words_too():
    claim = dataclasses.replace(
        stated("uls"),
        evidence=("audit by canaries: underpowered; 3 of 9 guesses", "no audit was made yet"),
        words=(),
    )
    found = next(line for line in lines(claim) if "attacks" in line.title)
    assert found.here == {claim.evidence[0]: VERDICTS["underpowered"]}
    assert VERDICTS["underpowered"] in page(dataclasses.replace(facts("uls"), guarantee=claim))


def test_a_large_delta_or_a_worse_epsilon_of_some_is_weak():
    claim = dataclasses.replace(stated("uls"), epsilon=0.9, words=())
    assert strength(dataclasses.replace(claim, delta=0.3)).startswith("Weakly")
    assert strength(dataclasses.replace(claim, delta=1e-4, units=101)).startswith("Weakly")
    assert strength(dataclasses.replace(claim, delta=1e-9)).startswith("Strongly")
    some = dataclasses.replace(claim, delta=1e-9, estimates=("so",), epsilons=(("for some", 15.0),))
    assert strength(some).startswith("Weakly")
    assert strength(dataclasses.replace(some, epsilon=30.0)).startswith("Hardly at all")


def test_nothing_that_makes_a_claim_weak_hides_behind_a_small_epsilon():
    claim = dataclasses.replace(stated("uls"), epsilon=0.9, delta=1e-9, estimates=(), words=())
    assert strength(claim) == "Strongly, proved"
    of_some = dataclasses.replace(
        claim,
        adjacency="add-or-remove",
        units=None,
        delta=1e-3,
        expected_batch=1000.0,
        sampling_probability=(0.01, 0.01),
        words=(),
    )
    assert strength(of_some) == "Weakly, proved"
    assert (
        "for about 100,000 units: their product is 100. A program that gives away all text of so many units"
        in " ".join(of_some.weakness())
    )
    assert strength(dataclasses.replace(of_some, delta=1e-8)) == "Strongly, proved"
    assert strength(dataclasses.replace(claim, advantage=0.97)) == "Weakly, proved"
    guessed = ((1e-6, 1e-6), (1e-4, 1e-4), (1e-3, 0.95))
    assert strength(dataclasses.replace(claim, reconstruction=guessed)) == "Weakly, proved"
    known = dataclasses.replace(claim, estimates=(PUBLISHED_KEY,))
    assert strength(known) == "Not against who knows the key, estimated"


@pytest.mark.parametrize("name", ["redacted", "selective"])
def test_who_does_not_claim_that_all_was_found_is_not_strong(name):
    claim = dataclasses.replace(
        stated(name), estimates=(f"the share that was found is not claimed, and {MISSED}",)
    )
    assert strength(claim) == "Not for what the detector misses, estimated"


def test_a_sweep_of_which_one_run_protects_nobody_is_weak():
    for together, said in (
        (None, "of which one or more protect nobody"),
        ((0.5, 0.3), "their delta of 0.3 allows all"),
    ):
        sweep = UncountedSweep(50, together)
        claim = dataclasses.replace(
            stated("uls"),
            epsilon=0.9,
            delta=1e-9,
            estimates=sweep.doubts(),
            epsilons=sweep.epsilons(),
            words=(),
        )
        assert strength(claim) == "Hardly at all, estimated"
        assert "Under other suppositions epsilon is inf for all 50 runs together" in " ".join(
            claim.weakness()
        )
        assert said in " ".join(claim.weakness())
        assert Guarantee.from_json(json.loads(json.dumps(claim.to_json(), allow_nan=False))) == claim
    assert UncountedSweep(50, (0.5, 1e-4)).epsilons()[0][1] == 0.5


def test_what_an_earlier_run_of_the_same_model_told_is_not_counted_as_strong():
    claim = dataclasses.replace(stated("uls"), epsilon=0.9, delta=1e-9, words=())
    past = (
        f"{TAUGHT} (without privacy): where it read text of the same people, what both tell of them adds up"
    )
    known = dataclasses.replace(claim, not_covered=(*claim.not_covered, past))
    assert strength(known) == strength(claim).replace("Strongly", "Strongly for this run alone")


def test_of_several_secrets_the_likeliest_to_come_out_is_told():
    claim = dataclasses.replace(stated("secret"), secret_targets=((1e-6, 1e-3), (0.05, 0.99)), words=())
    assert strength(claim) == (
        "A guess of 1 in 1,000,000 becomes at most 1 in 1,000; a guess of 1 in 20 becomes at most 99%, proved"
    )


def test_a_weak_claim_is_called_weak():
    claim = dataclasses.replace(stated("uls"), epsilon=10.5, delta=1e-9)
    assert strength(claim).startswith("Weakly")
    assert strength(dataclasses.replace(claim, epsilon=10.0)).startswith("Reasonably")
    assert strength(dataclasses.replace(claim, epsilon=1.0)).startswith("Strongly")


def test_the_page_is_self_contained_and_small():
    for name in NAMES:
        content = page(facts(name))
        assert len(content) < 2_000_000
        assert set(re.findall(r'(?:src|href)="([^"#]*)', content)) <= {"data:,", ""}
        assert "url(" not in content
        assert "@import" not in content


def test_without_being_asked_the_page_shows_nothing_measured():
    for word in ("perplexity", "Do not hand this page on", "Measured on private text"):
        assert word not in shown("uls")


def test_what_a_program_or_a_config_wrote_cannot_break_the_page():
    evil = dataclasses.replace(stated("uls"), unit="<script>alert(1)</script> of \"one\" & 'all'", words=())
    content = page(dataclasses.replace(facts("uls"), guarantee=evil, name='"><img src=x onerror=alert(1)>'))
    assert "<script>alert" not in content
    assert "<img" not in content


def test_the_sentences_of_the_verdict_are_easy_to_read():
    sentences = [s for name in NAMES for answer in answers(facts(name)) for s in answer.sentences]
    sentences += [s for name in NAMES for s in advice(facts(name))]
    text = " ".join(dict.fromkeys(sentences))
    assert textstat.flesch_reading_ease(text) >= 50
    lengths = sorted(len(s.split()) for s in re.split(r"(?<=[.:]) ", text))
    assert lengths[len(lengths) // 2] <= 18


def test_the_plain_words_of_a_claim_are_easy_to_read():
    """A list after a colon counts item by item, as the page and the card show it."""
    whole = [words for name in NAMES for words in stated(name).words]
    text = " ".join(dict.fromkeys(whole))
    sentences = [s for s in re.split(r"(?<=[.:;]) ", text) if s]
    lengths = sorted(len(s.split()) for s in sentences)
    assert lengths[len(lengths) // 2] <= 18
    assert textstat.flesch_reading_ease(". ".join(s.rstrip(".:;") for s in sentences)) >= 50


@pytest.mark.parametrize(
    ("adjacency", "words"),
    [
        ("zero-out", "had one person's text counted for nothing."),
        ("replace-one", "had one person's text been another of the same length."),
        ("add-or-remove", "had one person's text not been there."),
    ],
)
def test_the_claim_is_said_of_the_worlds_that_it_compares(adjacency, words):
    """Epsilon of one adjacency does not hold for another."""
    claim = dataclasses.replace(stated("uls"), adjacency=adjacency, worlds="", words=())
    assert words in lines(claim)[1].sentences[1]


@pytest.mark.parametrize(
    ("name", "adjacency", "words"),
    [
        ("selective", "zero-out", "had one row with sensitive text counted for nothing in noised steps."),
        ("selective", "replace-one", "had the marked characters of one row been others."),
        ("crt", "zero-out", "had one row with sensitive text counted for nothing in noised steps."),
        ("crt", "replace-one", "had one more secret been masked."),
    ],
)
def test_a_claim_of_sensitive_text_says_which_worlds_it_compares(name, adjacency, words):
    claim = dataclasses.replace(stated(name), adjacency=adjacency, worlds="", words=())
    assert words in lines(claim)[1].sentences[1]


def test_the_share_of_right_names_is_beside_the_share_that_is_found():
    """Of 100 used and 100 others the attacker names 13.5 and 1, so that 93.2% of the names are right."""
    claim = dataclasses.replace(stated("uls"), adjacency="zero-out", true_positive_rate=0.135, words=())
    strongly = answers(dataclasses.replace(facts("uls"), guarantee=claim))[2]
    assert "find at most 13.5%." in " ".join(strongly.sentences)
    assert "up to 93.2% of the names are right." in " ".join(strongly.sentences)


def test_an_audit_that_was_too_weak_is_told_before_the_model_is_handed_on():
    weak = ("an audit: underpowered; nothing was found",)
    strong = (*weak, "an audit: consistent; nothing was found")
    told = [advice(dataclasses.replace(facts("uls"), guarantee=dataclasses.replace(stated("uls"), evidence=each)))
            for each in (stated("uls").evidence, weak, strong)]  # fmt: skip
    assert [any("Decide as if there had been none" in line for line in each) for each in told] == [
        False,
        True,
        False,
    ]
