"""Faults that broke other libraries, or would break this one: where each goes in, and the tests that must notice."""

from accounting_faults import ACCOUNTING
from audit_faults import AUDIT
from batch_faults import BATCHES
from clipping_faults import CLIPPING
from integration_faults import INTEGRATIONS
from mechanism_faults import MECHANISMS
from noise_faults import NOISE
from pitfall_faults import PITFALLS
from rows_faults import ROWS
from run_faults import RUNS
from step_faults import STEPS
from text_faults import TEXT

FAULTS = [
    *PITFALLS,
    *STEPS,
    *RUNS,
    *CLIPPING,
    *NOISE,
    *BATCHES,
    *ROWS,
    *MECHANISMS,
    *ACCOUNTING,
    *TEXT,
    *AUDIT,
    *INTEGRATIONS,
]
