"""Faults of the audit: where each goes in, and the tests that must notice."""

from fault import Fault

AUDIT = [
    Fault(
        "audit",
        "one guess at several numbers counts as one at one",
        "audit/game.py",
        "ceiling_p_value(n, 1, ceiling",
        "ceiling_p_value(1, 1, ceiling",
        "tests/audit/test_game.py::test_each_number_that_one_guess_may_hit_counts",
    ),
    Fault(
        "audit",
        "a number that ties with another counts as first",
        "audit/exposure.py",
        "return not bool((found.totals >= floor).any())",
        "return not bool((found.totals > floor + 2 * _slack(model)).any())",
        "tests/audit/test_exposure.py",
    ),
    Fault(
        "audit",
        "two texts are held against the curve of a text and none",
        "audit/game.py",
        "return between(self.curve)",
        "return self.curve",
        "tests/audit/test_secret_game.py",
    ),
    Fault(
        "audit",
        "what noised sums show goes into the guarantee",
        "audit/evidence.py",
        'if game["view"] != "steps"',
        "if True",
        "tests/audit/test_attack.py",
    ),
    Fault(
        "audit",
        "coins need not be those that were sealed before training",
        "audit/attack.py",
        '.get("canaries") != manifest.commitment',
        '.get("canaries") is None',
        "tests/audit/test_attack.py",
    ),
    Fault(
        "audit",
        "the threshold of many runs comes from the runs that it is held against",
        "audit/repeated.py",
        "threshold(scores[:half], coins[:half])",
        "threshold(scores[half:], coins[half:])",
        "tests/audit/test_repeated.py",
    ),
    Fault(
        "audit",
        "rates of many runs are taken for what they are estimated at",
        "audit/repeated.py",
        "tpr, tnr = rates_from_below(tp, fn, fp, tn, ALPHA)",
        "tpr, tnr = tp / (tp + fn), tn / (fp + tn)",
        "tests/audit/test_repeated.py",
    ),
    Fault(
        "audit",
        "a number that the detector finds is planted as one that it misses",
        "redaction/documents.py",
        "return bool(first) and first == second",
        "return True",
        "tests/audit/test_mask_game.py",
    ),
    Fault(
        "audit",
        "a number hides among all, whatever the detector makes of them",
        "audit/numbers.py",
        "int(share * self.size) - held",
        "self.size",
        "tests/audit/test_attack.py",
    ),
]
