"""Faults of the accountant."""

from fault import Fault

ACCOUNTING = [
    Fault(
        "accounting",
        "a row that displaces another moves the sum by one clip norm",
        "privacy/accounting/truncated.py::_Step._with",
        "special.ndtr((2 - x) / s)",
        "special.ndtr((1 - x) / s)",
        "tests/privacy/accounting/test_truncated.py",
    ),
    Fault(
        "accounting",
        "a full batch has room for every row",
        "privacy/accounting/truncated.py::TruncatedPoisson.displacing",
        "more * self.cap / self.size / self.full if self.full else 0.0",
        "0.5 * more * self.cap / self.size / self.full if self.full else 0.0",
        "tests/privacy/accounting/test_truncated.py",
    ),
    Fault(
        "selective",
        "the pair for replacement is one clip norm apart",
        "privacy/accounting/replacement.py::_Loss.delta",
        "(-1 - x) / s",
        "-x / s",
        "tests/privacy/accounting/test_replacement.py",
    ),
    Fault(
        "adaptive",
        "a step takes a little more than the budget has",
        "privacy/accounting/filter.py::RenyiFilter.allows",
        "_total(self._made + Counter([release])) <= self.limit",
        "_total(self._made + Counter([release])) <= 1.05 * self.limit",
        "tests/privacy/accounting/test_filter.py",
    ),
    Fault(
        "accounting",
        "what lies beyond the grid is forgotten",
        "privacy/accounting/composing.py::connected",
        "pld_pmf.DensePLDPmf(interval, first, np.maximum(masses, 0.0), lost, True)",
        "pld_pmf.DensePLDPmf(interval, first, np.maximum(masses, 0.0), 0.0, True)",
        "tests/privacy/accounting/test_composing.py",
    ),
    Fault(
        "accounting",
        "dots are connected below the divergence",
        "privacy/accounting/composing.py::connected",
        "masses[1:] -= falls",
        "",
        "tests/privacy/accounting/test_composing.py",
    ),
    Fault(
        "accounting",
        "the other order of a pair weighs as much",
        "privacy/accounting/composing.py::mirrored",
        "deltas * np.exp(-interval * np.arange(len(deltas)))",
        "deltas",
        "tests/privacy/accounting/test_composing.py",
    ),
    Fault(
        "accounting",
        "rounding makes mass far from epsilon 0",
        "privacy/accounting/pairs.py::MixtureLoss.above",
        "np.where(own < 0, -1.0, 1.0)",
        "np.ones_like(own)",
        "tests/privacy/accounting/test_exact_dots.py",
    ),
    Fault(
        "accounting",
        "losses end where masses fall short of 1",
        "privacy/accounting/pairs.py::MixtureLoss.above",
        "float(self.sampling_probs[self.sensitivities == 0].sum())",
        "max(0.0, 1 - float(self._sampling_prob))",
        "tests/privacy/accounting/test_pairs.py",
    ),
]
