"""What is printed of a claim is on the attacker's side of it, and within one unit of its last digit."""

import ast
import dataclasses
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import confide
from confide.cli import show_plans
from confide.planning import plan as planning
from confide.planning.plan import Size
from confide.privacy.guarantee import Guarantee
from confide.utils.rounding import (
    at_least,
    at_most,
    one_in_at_least,
    one_in_at_most,
    percent_at_least,
    percent_at_most,
)
from tests.every_claim import CASES, config, data
from tests.places import ROOT
from tests.privacy.test_guarantee import fields

NUMBERS = st.one_of(
    st.floats(0, 1e6, allow_nan=False),
    st.floats(1e-300, 1e300),
    st.floats(1e-12, 1.0),
    st.decimals("0.00000001", "10000", places=8).map(float),
)
SHARES = st.one_of(st.floats(1e-300, 1.0), st.floats(1e-9, 1.0), st.just(0.0))


def read(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def unit(text: str, digits: int) -> Decimal:
    """One unit of the last of so many digits; of a number that is printed whole, 1."""
    value = read(text)
    if value == 0:
        return Decimal(10) ** -400
    return max(Decimal(10) ** (value.adjusted() - digits + 1), Decimal(0))


@given(NUMBERS, st.integers(1, 6))
@example(7.99948, 4)
@example(9.9996, 4)
@example(9999.6, 4)
@example(1e-5, 3)
@example(0.1 + 0.2, 6)
@example(5e-324, 3)
@example(123456789.4, 4)
def test_significant_digits_are_rounded_to_one_side(x, digits):
    up, down = at_most(x, digits), at_least(x, digits)
    assert float(read(down)) <= x <= float(read(up))
    for text in (up, down):
        last = unit(text, digits)
        if abs(x) >= 10**digits:
            last = min(last, Decimal(1)) if abs(x) < 1e15 else last
        assert abs(read(text) - Decimal(x)) <= last


@given(st.floats(0, 1e9), st.integers(0, 5))
@example(0.125, 2)
@example(0.30000000000000004, 1)
@example(0.999999, 3)
def test_places_are_rounded_to_one_side(x, places):
    up, down = at_most(x, places=places), at_least(x, places=places)
    assert float(read(down)) <= x <= float(read(up))
    for text in (up, down):
        assert len(text.partition(".")[2]) == places
        assert abs(read(text) - Decimal(x)) <= Decimal(10) ** -places


@given(SHARES, st.integers(0, 3))
@example(0.03214, 1)
def test_percentages_are_rounded_to_one_side(x, places):
    up, down = percent_at_most(x, places), percent_at_least(x, places)
    values = [read(text.removesuffix("%")) / 100 for text in (down, up)]
    assert float(values[0]) <= x <= float(values[1])
    assert all(abs(value - Decimal(x)) <= Decimal(10) ** -(places + 2) for value in values)


def chance(text: str) -> Decimal:
    if text == "none":
        return Decimal(0)
    if text.endswith("%"):
        return read(text.removesuffix("%")) / 100
    return 1 / read(text.removeprefix("1 in "))


@given(SHARES)
@example(6.3e-6)
@example(1e-3)
@example(0.0999999)
def test_chances_in_words_are_rounded_to_one_side(p):
    more, less = chance(one_in_at_most(p)), chance(one_in_at_least(p))
    slack = Decimal(p) * Decimal("1e-15")  # a double that stands for a short decimal is told as that decimal
    assert less - slack <= Decimal(p) <= more + slack
    if p > 0:
        assert more <= Decimal(p) * Decimal("1.1001")
        assert less >= Decimal(p) * Decimal("0.9")


def test_what_was_seen_before_and_how_it_reads():
    assert at_most(7.99948) == "8"
    assert at_most(7.9991) == "8"
    assert at_least(7.99948) == "7.999"
    assert at_most(7.9983) == "7.999"
    assert at_most(1e-5, 3) == at_least(1e-5, 3) == "1e-05"
    assert (at_most(1234.5), at_least(1234.5)) == ("1,235", "1,234")
    assert at_most(math.inf) == "inf"
    assert at_most(0.0) == at_least(0.0) == "0"
    assert (percent_at_most(0.12341), percent_at_least(0.12341)) == ("12.4%", "12.3%")
    assert (one_in_at_most(6.3e-6), one_in_at_least(6.3e-6)) == ("1 in 150,000", "1 in 160,000")


# what a guarantee prints ----------------------------------------------------------------------------------------
SMALL = st.floats(1e-9, 0.2)


@given(
    epsilon=st.floats(1e-3, 500),
    delta=SMALL,
    advantage=st.floats(0, 1),
    rate=st.floats(0, 1),
    noise=st.floats(0.01, 100),
    posteriors=st.tuples(SMALL, SMALL, SMALL),
    sampling=st.floats(1e-6, 1),
)
@example(7.99948, 1.2345e-5, 0.50001, 0.33333, 1.23456789, (1.23456e-5, 1.6e-3, 9.87e-3), 0.0123456789)
def test_every_number_of_a_claim_is_printed_on_the_attackers_side(
    epsilon, delta, advantage, rate, noise, posteriors, sampling
):
    reconstruction = tuple(zip((1e-6, 1e-4, 1e-3), posteriors, strict=True))
    claim = Guarantee(
        **fields(
            epsilon=epsilon,
            delta=delta,
            advantage=advantage,
            true_positive_rate=rate,
            noise_multiplier=noise,
            reconstruction=reconstruction,
            curve=((epsilon, delta),),
            sampling_probability=(sampling, sampling),
            estimates=("a reason",),
            epsilons=(("if so", epsilon),),
        )
    )
    lines = dict(claim.lines())
    for name, value in {
        "epsilon": epsilon,
        "delta": delta,
        "advantage of the best test": advantage,
        "true positives at 1% false positives": rate,
        "sampling probability": sampling,
        "epsilon, if so": epsilon,
    }.items():
        assert value <= float(read(lines[name])) <= value * (1 + 1e-3) + 1e-9, name
    assert noise * (1 - 1e-5) <= float(read(lines["noise multiplier"])) <= noise
    at = lines["whole curve (epsilon at delta)"].split(" at ")
    assert float(read(at[0])) >= epsilon
    assert float(read(at[1])) >= delta
    told = re.findall(r"r\(([^)]*)\) = ([^;]*)", lines["reconstruction r(p)"])
    for (p, r), (prior, posterior) in zip(told, reconstruction, strict=True):
        assert float(read(p)) == prior
        assert posterior <= float(read(r)) <= posterior * 1.0101
    words = " ".join(claim.sentences())
    stated = re.search(r"with epsilon = (\S+) at delta = (\S+), ", words)
    assert epsilon <= float(read(stated[1])) <= epsilon * (1 + 1e-3) + 1e-9
    assert delta <= float(read(stated[2])) <= delta * (1 + 1e-2)
    found = re.search(r"rightly says so in at most (\S+)% of .* right in at most (\S+)% of", words)
    assert float(read(found[1])) / 100 >= rate * (1 - 1e-15)
    assert float(read(found[2])) / 100 >= (1 + advantage) / 2 * (1 - 1e-15)
    said = re.search(r"at most like this: (.*?)\. The formal", words)[1]
    for (prior, posterior), pair in zip(reconstruction, said.split("; "), strict=True):
        before, after = pair.split(" becomes at most ")
        assert chance(before) <= Decimal(repr(prior))
        assert chance(after) >= Decimal(posterior) * (1 - Decimal("1e-15"))
    assert float(read(re.search(r"suppositions epsilon is (\S+) if so", words)[1])) >= epsilon


class Bound(float):
    """A number of a claim that refuses to be printed as any other is."""

    def __format__(self, spec: str) -> str:
        raise AssertionError(f"a number of a claim was printed by {spec!r}, which rounds to the nearest")

    def __round__(self, digits: int | None = None) -> int:
        raise AssertionError("a number of a claim was rounded to the nearest")


def test_no_word_or_line_of_a_claim_formats_its_numbers_by_itself():
    claim = Guarantee(**fields(delta=2e-3, advantage=0.95, units=100))
    numbers = ("epsilon", "delta", "advantage", "true_positive_rate", "noise_multiplier")
    for name in numbers:
        object.__setattr__(claim, name, Bound(getattr(claim, name)))
    for name in ("curve", "reconstruction"):
        pairs = tuple((Bound(a), Bound(b)) for a, b in getattr(claim, name))
        object.__setattr__(claim, name, pairs)
    again = dataclasses.replace(claim, words=())
    assert isinstance(again.epsilon, Bound)
    assert len(again.sentences()) > 6
    assert "privacy" in claim.model_card_section().lower()


CLAIMED_KEYS = {"epsilon", "delta", "noise_multiplier", "epsilon_at_same_noise", "prior", "posterior"}


def guarded(found):
    """The same facts, in which a claimed number cannot be printed to the nearest."""
    if isinstance(found, dict):
        return {
            key: Bound(value) if key in CLAIMED_KEYS and isinstance(value, float) else guarded(value)
            for key, value in found.items()
        }
    return [guarded(value) for value in found] if isinstance(found, list) else found


@pytest.mark.parametrize("name", ["uls", "dp-sgd, target", "selective, light noise", "secret"])
def test_a_plan_prints_no_claimed_number_to_the_nearest(name, capsys):
    mechanism, given, _ = CASES[name]
    times = (10.0,) if name == "uls" else ()
    found = planning.plan(
        config(mechanism, **given), data(), Size(1000, 1000, 1, 8, 64), times_users=times
    ).to_json()
    show_plans.plan(guarded(found))
    told = capsys.readouterr().out
    if found["chosen"]["epsilon"] is not None:
        stated = re.search(r"^epsilon (\S+) at delta (\S+), ", told)
        if stated is not None:
            assert float(read(stated[1])) >= found["chosen"]["epsilon"]
            assert float(read(stated[2])) >= found["chosen"]["delta"]


# the sources ----------------------------------------------------------------------------------------------------
CLAIMED = re.compile(
    r"epsilon|delta\b|delta_|posterior|prior|advantage|true_positive|\btpr\b|ceiling|reconstruct|reached|\bproved"
    r"|noise_multiplier|p_value|release_noise|release_share|recall|\bmost\b|\bbound\b|strongest|confidence|sampling_prob"
    r"|\.q\b|\brate\b|\brho\b|auroc|sensitivity\(",
)
"""What is claimed, or estimated as a bound, by the names that it has here."""

PLAIN = re.compile(r"[.,\d]*[gGeEf%]$")
SOURCES, STUDIES = Path(confide.__file__).parent, ROOT / "studies"
NOT_CLAIMED = {
    # A learning rate, an input that an error quotes, a length in tokens, and the like: nothing an attacker is bound by.
    ("runs/personalise.py", "rate"),
    ("runs/personalise.py", "rates[0]"),
    ("runs/verify.py", "most"),
    ("studies/parts/user_sampling.py", "most"),
    ("sensitive/redaction/page.py", "100 * tally['share_of_tokens'] / most"),
    ("cli/show.py", "rate"),
    ("cli/tune.py", "row['most']"),
    ("studies/suggestion.py", "rate"),
    ("privacy/accounting/population.py", "self.prior[k]"),
    ("privacy/accounting/population.py", "self.posterior[k]"),
    ("privacy/secret_targets.py", "prior"),
    ("privacy/secret_targets.py", "posterior"),
    ("privacy/row_weights.py", "p[place]"),
    ("privacy/row_weights.py", "r[place]"),
}


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def printed(tree: ast.AST):
    """(line, expression, how) of every number that is formatted to the nearest."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            spec = "".join(v.value for v in node.format_spec.values if isinstance(v, ast.Constant))
            if PLAIN.search(spec):
                yield node.lineno, ast.unparse(node.value), spec
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("number", "show.number", "format"):
                yield node.lineno, ast.unparse(node.args[0]), name
            if name.endswith(".format") and isinstance(node.func, ast.Attribute):
                template = ast.unparse(node.func.value)
                if re.search(r":[.,\d]*[gGeEf%]\}", template):
                    yield node.lineno, ", ".join(map(ast.unparse, node.args)), "format"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
            yield node.lineno, ast.unparse(node.right), "%"


@pytest.mark.parametrize(
    "name",
    [
        path.relative_to(above).as_posix()
        for below, above in ((SOURCES, SOURCES), (STUDIES, ROOT))
        for path in sorted(below.rglob("*.py"))
    ],
)
def test_no_source_prints_a_claimed_number_to_the_nearest(name):
    path = (ROOT if name.startswith("studies/") else SOURCES) / name
    faults = [
        f"{name}:{line}: {expression} by {how}"
        for line, expression, how in printed(ast.parse(path.read_text("utf-8")))
        if CLAIMED.search(expression) and (name, expression) not in NOT_CLAIMED
    ]
    assert not faults, (
        "print these by at_most, at_least or their like (confide.utils.rounding): " + "; ".join(faults)
    )


@pytest.mark.parametrize(
    "source",
    [
        'f"{guarantee.epsilon:.3g}"',
        "f\"{claim['delta']:.2e}\"",
        'number(row["epsilon"])',
        '"{:.3g}".format(posterior)',
        '"%.3g" % epsilon',
        'f"{found.bound:.1%}"',
    ],
)
def test_the_search_finds_what_it_seeks(source):
    found = [expression for _, expression, _ in printed(ast.parse(source))]
    assert len(found) == 1
    assert CLAIMED.search(found[0])
