"""Bound the rounding errors of norms and sums, so that no unit adds more than C.

Theorem. Let s_u = min(1, C / norm_u) with the norm that the engine computes for a unit u, and let a_u be the vector
that is added for it. Then |a_u| <= C.

The vector a_u. Let g_u be the exact gradient that the layers' inputs and output gradients determine. The sum that the
engine computes is sum_u s_u g_u + E, where E is rounding. The bound below on E is a sum over units; a_u is s_u g_u
plus u's share of E. If a unit is alone in the sum, a_u is the value of the sum. A unit's presence also changes how the
terms of other units round, by at most their shares of E. That is not counted, and the guarantee says so. On ordinary
text it is millionths of C. But rows can be chosen so that all these roundings have one sign (Casacuberta et al. 2022,
"Widespread underestimation of sensitivity in differentially private libraries"). Then it grows with U^2 u C in a step
of U units, which comes near C with thousands of them. A running sum of twice the digits would end that, and would take
twice the memory of a sum.

Error model (Higham 2002, "Accuracy and Stability of Numerical Algorithms", sections 2.2, 3.1 and 3.5). One operation
errs by at most `u` of its result. So a sum or an inner product of n terms errs by at most gamma(n) sum |terms|, where
gamma(n) = n u / (1 - n u): in *any* order of summation, with or without fused operations, and for any terms, such as
equal ones, whose errors all have one sign. No slower growth, such as sqrt(n), may be assumed for a person's text.

Assumptions:

- Float32 arithmetic has u = 2**-24, float64 has u = 2**-53. Products of two bf16 values are exact in float32.
- Tensor cores that multiply bf16 truncate sums where float32 would round them: u = 2**-22.
- Products are not computed in TF32 or bf16 where float32 is asked for; see `exact` and `refuse_coarse_products`.
- Nothing underflows: values below 2**-63 count as 0 in a norm. C is far above that.

Proof, by the form in which a parameter's gradient is held.

- *Dense* (`PerRow`; other uses where it is faster) and *tables*: one tensor D_u is measured and added. Its norm errs by
  `norm_error`, relatively, since all squares have one sign. The sum over U units errs by gamma(U + 2) s_u |D_u|.
- *Factors*, g_u = sum_t l_t (x) r_t, with L_u = sum_t |l_t| |r_t|: |g_u|^2 is sum_tt' (l_t . l_t') (r_t . r_t');
  each term, a product of inner products of n and m terms, errs by at most gamma(n + m + 1) |l_t| |l_t'| |r_t| |r_t'|:
  in all `Outer.gram_error` L_u^2. The sum over N positions has an error of at most gamma(N + 3) s_u |l_ti| |r_tj| for
  each position, that is a matrix of norm at most `Outer.sum_error` s_u L_u. So
  sqrt(squares + gram_error L_u^2) + sum_error L_u is at least |g_u| + |E_u| / s_u.
- *Tied* parameters have factors and a table. The inner product of the two errs by `Lookup.cross_error` L_u K_u, where
  K_u is the table's sum of |gradients|.

Where gradients cancel, L_u is far above |g_u|, and the bound is larger than the norm: the unit would be clipped more
than necessary. Its norm and the sum are then computed again, both in float64; other units keep their norms.

On a GPU with bf16 factors, where float64 is slow, the norm is first taken of the matrix G_u that a product of the
factors gives (`Outer.matrix_squares`). |g_u| is at most |G_u| + `Outer.matrix_error` L_u, and the error is far smaller
than that of inner products if there are many positions. Only if this bound is too large as well, float64 follows.

The engine's last factor, 1 + `last_error`, covers the remaining errors: those of the sum over units, of C / norm, and
of the running sum. The running sum is float32. Each call rounds it by up to u times its own norm, which counts as the
share of that call's units: equal parts round the same way there, too.

A unit's bound must not depend on the other rows of its batch; otherwise, a unit's presence could change the clipping
of others, and the sum would change by more than C. So terms are counted up to constants, not up to the size of a batch.
The other rows may decide whether a unit's gradient is held dense or in factors, so a dense one is given the bound that
its factors would have. One dependence remains: the cross term of a tied parameter.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from confide.utils.errors import InputError

# The largest relative error of one operation.
ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}

# The same for tensor cores. The size of their truncation is not published. Fasi et al. 2021 measured it, and this value
# allows for more than they measured.
CUT_OFF = 2.0**-22

# The same for a float32 factor that tensor cores take as a sum of two bf16 parts. The parts leave over less than 2**-18
# of it; the rounding of the second product, whose terms are below 2**-9 of those of the first, is far smaller.
TWO_PARTS = 2.0**-17

_SINGLE = ROUNDOFF[torch.float32]

# Environment variables that make float32 products coarse, and the values that do not.
_OVERRIDES = {
    "NVIDIA_TF32_OVERRIDE": {"0"},
    "DNNL_DEFAULT_FPMATH_MODE": {"STRICT"},
    "ONEDNN_DEFAULT_FPMATH_MODE": {"STRICT"},
}


def gamma(terms: float, roundoff: float) -> float:
    """Bound the error of a sum of `terms` terms, in any order, as a share of sum |terms|."""
    product = terms * roundoff
    if product > 0.5:
        raise ValueError(f"a sum of {terms} terms with roundoff {roundoff} has no digit that is certain")
    return product / (1 - product)


def last_error(units: int, before: int, ranks: int) -> float:
    """Compute the relative error that a whole norm must allow for, in addition to the errors of its parts.

    Args:
        units: number of units that are added up in this call.
        before: number of units in the sum that they are added to.
        ranks: number of ranks whose sums are added up.
    """
    # Mostly a constant: a unit's norm must not depend on the other rows of its batch.
    return gamma(max(128, units + (before + units) / units + ranks + 8), _SINGLE)


def exact(device: torch.device) -> AbstractContextManager[None]:
    """Compute float32 products in true float32 inside the context: no autocast, no TF32, no autograd graph.

    Raises:
        InputError: torch does not tell which precision was asked for.
    """
    precision = _precision()
    if precision == "highest" and not torch.is_autocast_enabled(device.type) and not torch.is_grad_enabled():
        return nullcontext()  # the usual case, made fast because every layer asks
    return _made_exact(device, precision)


def _precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError as error:
        raise InputError(
            "float32 precision was set by torch.backends...fp32_precision, which torch does not let us read: "
            "use torch.set_float32_matmul_precision instead"
        ) from error


@contextmanager
def _made_exact(device: torch.device, precision: str) -> Iterator[None]:
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(precision)


def refuse_coarse_products(device: torch.device) -> None:
    """Refuse a process whose float32 products are coarser than float32; call it inside `exact`.

    Raises:
        InputError: names the setting or the device.
    """
    for name, harmless in _OVERRIDES.items():
        if os.environ.get(name, "").upper() not in {"", *harmless}:
            raise InputError(
                f"the environment variable {name}={os.environ[name]} makes float32 products coarser than the bound on "
                "norms allows for: unset it"
            )
    # TF32 has 10 bits after the point, bf16 has 7: 1 + 2**-12 is 1 in both.
    value = 1 + 2.0**-12
    probe = torch.full((1, 256, 256), value, device=device)
    if float((torch.bmm(probe, probe) - 256 * value**2).abs().max()) > 256 * value**2 * gamma(256, _SINGLE):
        raise InputError(
            f"float32 products on {device} are coarser than float32: switch off whatever setting of torch or of its "
            "libraries makes them so"
        )
