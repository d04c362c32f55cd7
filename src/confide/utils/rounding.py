"""Numbers of a claim as they are printed: rounded in the attacker's favour, never to the nearest.

`at_most` is for upper bounds on an attacker (epsilon, delta, a posterior, a rate, an advantage): the printed number is
no less than the proved one. `at_least` is for protection, or for something that was shown (the noise multiplier, the
prior of an attacker, a lower bound of an audit): the printed number is no more.

Read as a double, the printed number is always on that side. As a decimal it is so too, with one exception: a number
that is the double nearest to a short decimal, as a setting is, prints as that decimal. So 1e-5 stays 1e-5, and does
not become 1.01e-5 because the double lies above it by one part in 10^17.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

_LONG = 15  # longest whole number, in digits, that is written out


def at_most(x: float, digits: int = 4, places: int | None = None) -> str:
    """Write the least number of so many digits that is no less than x.

    Args:
        x: the number.
        digits: significant ones; whole numbers that have more are kept whole.
        places: of the fraction, in place of `digits`; zeros at the end are then kept.
    """
    return _printed(x, digits, places, ROUND_CEILING)


def at_least(x: float, digits: int = 4, places: int | None = None) -> str:
    """Write the largest number of so many digits that is no more than x; for the arguments see `at_most`."""
    return _printed(x, digits, places, ROUND_FLOOR)


def percent_at_most(x: float, places: int = 1) -> str:
    """Write a share as a percentage that is no less than it, with up to so many places: 0.12341 is 12.4%."""
    return _percent(x, places, ROUND_CEILING)


def percent_at_least(x: float, places: int = 1) -> str:
    """Write a share as a percentage that is no more than it."""
    return _percent(x, places, ROUND_FLOOR)


def one_in_at_most(p: float) -> str:
    """Write a chance for people, no less than p: as a percentage from a tenth on, else "1 in so many"."""
    return _one_in(p, ROUND_FLOOR)


def one_in_at_least(p: float) -> str:
    """Write a chance for people, no more than p."""
    return _one_in(p, ROUND_CEILING)


def _printed(x: float, digits: int, places: int | None, rounding: str) -> str:
    x = float(x)
    if not math.isfinite(x):
        return str(x)
    if places is not None:
        return f"{_to_places(x, places, rounding):,f}"
    whole = max(0, Decimal(x).adjusted() + 1)
    if digits < whole <= _LONG:
        return f"{_to_places(x, 0, rounding):,f}"
    return _plain(_to_digits(x, digits, rounding))


def _percent(x: float, places: int, rounding: str) -> str:
    if not math.isfinite(x):
        return f"{x}%"
    hundredfold = _to_places(float(x), places + 2, rounding).scaleb(2)
    return f"{_without_zeros(hundredfold):,f}%"


def _one_in(p: float, rounding_of_odds: str) -> str:
    """Write a chance; `rounding_of_odds` rounds its odds, and rounding them down makes the chance larger."""
    if math.isnan(p):
        return "nan"
    if p <= 0:
        return "none"
    if p >= 0.1:
        return _percent(p, 1, ROUND_CEILING if rounding_of_odds == ROUND_FLOOR else ROUND_FLOOR)
    # The quotient of the shortest decimal that reads as p, so that 1e-3 is 1 in 1,000.
    odds = Context(prec=40, rounding=rounding_of_odds).divide(Decimal(1), Decimal(repr(float(p))))
    odds = Context(prec=2, rounding=rounding_of_odds).plus(odds)
    return f"1 in {odds:,f}" if odds.adjusted() < _LONG else f"1 in {_plain(odds)}"


def _to_digits(x: float, digits: int, rounding: str) -> Decimal:
    nearest = _context(digits, ROUND_HALF_EVEN).plus(Decimal(x))
    return nearest if float(nearest) == x else _context(digits, rounding).plus(Decimal(x))


def _to_places(x: float, places: int, rounding: str) -> Decimal:
    exact, unit = Decimal(x), Decimal(1).scaleb(-places)
    wide = _context(max(1, exact.adjusted() + places + 2), ROUND_HALF_EVEN)
    nearest = exact.quantize(unit, ROUND_HALF_EVEN, wide)
    return nearest if float(nearest) == x else exact.quantize(unit, rounding, wide)


def _context(digits: int, rounding: str) -> Context:
    return Context(prec=digits, rounding=rounding, Emin=-9999, Emax=9999)


def _plain(value: Decimal) -> str:
    """Write a number as `:g` writes a float: with an exponent if it is far from 1, without zeros at the end."""
    if value == 0:
        return "0"
    exponent = value.adjusted()
    if -5 < exponent < _LONG:
        return f"{_without_zeros(value):,f}"
    return f"{_without_zeros(value.scaleb(-exponent, _context(40, ROUND_FLOOR))):f}e{exponent:+03d}"


def _without_zeros(value: Decimal) -> Decimal:
    """Remove zeros at the end of the fraction."""
    if value == value.to_integral_value():
        return value.quantize(Decimal(1), context=_context(400, ROUND_FLOOR))
    return value.normalize(_context(400, ROUND_FLOOR))
