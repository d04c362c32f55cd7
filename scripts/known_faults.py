"""Faults that broke other libraries, or would break this one: where each goes in, and the tests that must notice."""

from accounting_faults import ACCOUNTING
from audit_faults import AUDIT
from batch_faults import BATCHES
from clipping_faults import CLIPPING
from mechanism_faults import MECHANISMS
from noise_faults import NOISE
from rows_faults import ROWS
from step_faults import STEPS
from text_faults import TEXT

FAULTS = [
    *STEPS,
    *CLIPPING,
    *NOISE,
    *BATCHES,
    *ROWS,
    *MECHANISMS,
    *ACCOUNTING,
    *TEXT,
    *AUDIT,
]
