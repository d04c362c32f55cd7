"""Faults of the accountant: where each goes in, and the tests that must notice."""

from fault import Fault

ACCOUNTING = [
    Fault(
        "selective",
        "the pair for replacement is one clip norm apart",
        "accounting/replacement.py",
        "np.exp(epsilon + log_ndtr((-1 - x) / s))",
        "np.exp(epsilon + log_ndtr(-x / s))",
        "tests/accounting/test_replacement.py",
    ),
    Fault(
        "adaptive",
        "a step takes a little more than the budget has",
        "accounting/filter.py",
        "<= self.limit))",
        "<= 1.05 * self.limit))",
        "tests/accounting/test_filter.py",
    ),
    Fault(
        "accounting",
        "what lies beyond the grid is forgotten",
        "accounting/composing.py",
        "np.maximum(masses, 0.0), lost, True)",
        "np.maximum(masses, 0.0), 0.0, True)",
        "tests/accounting/test_composing.py",
    ),
    Fault(
        "accounting",
        "dots are connected below the divergence",
        "accounting/composing.py",
        "    masses[1:] -= falls\n",
        "",
        "tests/accounting/test_composing.py",
    ),
    Fault(
        "accounting",
        "the other order of a pair weighs as much",
        "accounting/composing.py",
        "deltas * np.exp(-interval * np.arange(len(deltas)))",
        "deltas",
        "tests/accounting/test_composing.py",
    ),
    Fault(
        "accounting",
        "rounding makes mass far from epsilon 0",
        "accounting/processes.py",
        "side = np.where(own < 0, -1.0, 1.0)",
        "side = np.ones_like(own)",
        "tests/accounting/test_exact_dots.py",
    ),
    Fault(
        "accounting",
        "losses end where masses fall short of 1",
        "accounting/processes.py",
        "still = float(self.sampling_probs[self.sensitivities == 0].sum())",
        "still = max(0.0, 1 - float(self._sampling_prob))",
        "tests/accounting/test_processes.py",
    ),
]
