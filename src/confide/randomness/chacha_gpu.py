"""Gaussian noise computed on the device of the tensor: ChaCha20 in counter mode, as a Triton kernel.

`streams.Stream` is AES on the CPU, so for a model on a GPU its noise crosses the bus at every step. Here only the key
crosses it, as a kernel argument; key stream, normal values and their addition are one pass over the tensor.

The cipher is ChaCha20 as its author defined it (D. J. Bernstein, "ChaCha, a variant of Salsa20", 2008): words 12 and
13 of the state are a 64-bit block counter, words 14 and 15 the nonce. RFC 8439 reads the same four words as a 32-bit
counter and a 96-bit nonce: its block with counter c and nonce words (n, x, y) is the one here with counter
n * 2^32 + c and nonce words (x, y). With n = 0 the two key streams are equal for 2^32 blocks, 256 GiB. There the key
stream of the RFC ends, and this one goes on.

Triton is imported at first use: importing this module needs neither it nor a GPU.
"""

from __future__ import annotations

import functools
import inspect
import struct
from typing import TYPE_CHECKING, Any

from confide.randomness.noise_grid import shift_of
from confide.utils.errors import InputError

if TYPE_CHECKING:  # draws need no tensors, and torch takes seconds to import
    import torch
    import triton.language as tl

KEY_BYTES = 32
NONCE_BYTES = 8
BLOCK_WORDS = 16  # 32-bit words in a block of key stream
BLOCK_VALUES = 8  # normal values made from one block
COUNTERS = 1 << 64  # blocks of a key before its counter would begin again

_BLOCKS = 128  # blocks of key stream that a program makes: one per thread at Triton's four warps


class ChaChaStream:
    """Random words and normal values of one secret key, addressable by index.

    A key serves a single (phase, purpose, step, parameter), and is derived elsewhere, so the nonce is zero.
    Tensors lie on a GPU, or on the CPU if Triton interprets its kernels (`TRITON_INTERPRET=1`).
    """

    def __init__(self, key: bytes):
        """Check the key.

        Raises:
            ValueError: `key` does not have 32 bytes.
            InputError: Triton is missing.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"a ChaCha20 key has {KEY_BYTES} bytes, this one has {len(key)}")
        self._key = key
        self._kernels = _kernels()

    def words(
        self, n_blocks: int, start: int = 0, *, device: torch.device | str, nonce: bytes = bytes(NONCE_BYTES)
    ) -> torch.Tensor:
        """Return the key stream of `n_blocks` blocks from block `start` on, as bit patterns: int32[n_blocks, 16].

        Row b is the block of counter `start` + b; `nonce` is words 14 and 15 of the state, little-endian.

        Raises:
            ValueError: the blocks do not exist, or the nonce has another length.
        """
        import torch

        if len(nonce) != NONCE_BYTES:
            raise ValueError(
                f"beside a 64-bit counter a nonce has {NONCE_BYTES} bytes, this one has {len(nonce)}"
            )
        state = self._state(start, n_blocks, nonce)
        out = torch.empty(n_blocks, BLOCK_WORDS, dtype=torch.int32, device=device)
        with torch.cuda.device_of(out):  # type: ignore[no-untyped-call, unused-ignore]
            self._kernels["_write_words"][_grid(n_blocks)](out, n_blocks, *state, BLOCKS=_BLOCKS)
        return out

    def add_normal(
        self, tensor: torch.Tensor, scale: float, start: int = 0, shift: float | None = None
    ) -> None:
        """Add `scale` * N(0, 1) to every element of a contiguous float32 tensor, in place.

        Element i, in the order of memory, takes the value of index `start` + i: a shard of a parameter that begins at
        index `start` gets the same values as in the whole parameter. Block b of the key stream, eight 64-bit words,
        makes values 8 b to 8 b + 7. From each pair of words the Box-Muller method takes a radius and an angle, in
        float64, so that the tail reaches 10.2 standard deviations. Product and sum are float64 too. The
        sum is rounded to a grid (`noise_grid`), and then to float32.

        Args:
            shift: what rounds to the grid, 0 for none; default: `shift_of` the scale.

        Raises:
            ValueError: the dtype is another, the tensor is not contiguous, or the indices do not exist.
        """
        import torch

        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            what = f"{tensor.dtype}, shape {tuple(tensor.shape)}, strides {tensor.stride()}"
            raise ValueError(f"noise is added to contiguous float32 tensors only, this one is {what}")
        first, skip = divmod(start, BLOCK_VALUES)
        n_blocks = -(-(skip + tensor.numel()) // BLOCK_VALUES)
        state = self._state(first, n_blocks, bytes(NONCE_BYTES))
        shift = shift_of(scale) if shift is None else shift
        with torch.cuda.device_of(tensor):  # type: ignore[no-untyped-call, unused-ignore]
            self._kernels["_add_normal"][_grid(n_blocks)](
                tensor, tensor.numel(), skip, float(scale), shift, *state, BLOCKS=_BLOCKS
            )

    def _state(self, start: int, n_blocks: int, nonce: bytes) -> tuple[int, ...]:
        """Return words 4 to 15 of the first block's state as six signed 64-bit integers: key, counter and nonce."""
        if not 0 <= start < COUNTERS or n_blocks > COUNTERS - start:
            raise ValueError(f"a key has blocks 0 to 2^64 - 1: {n_blocks} from {start} on do not exist")
        return struct.unpack("<6q", self._key + start.to_bytes(8, "little") + nonce)


def _grid(n_blocks: int) -> tuple[int]:
    return (-(-n_blocks // _BLOCKS),)


# From here to `_kernels` the functions are Triton's and run on the GPU, where a value is a vector over blocks of key
# stream. Annotations stay text: `tl` has no value before `_kernels` has run. Words of the state are uint32, whose sums
# wrap, meant and thus left out of Triton's overflow checks, and whose shifts bring in zeros. Literals stand where they
# are used: assigned to a name, an interpreted float would be a float32.


def _quarter_round(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor) -> tl.tuple:
    a = tl.add(a, b, sanitize_overflow=False)
    d ^= a
    d = (d << 16) | (d >> 16)
    c = tl.add(c, d, sanitize_overflow=False)
    b ^= c
    b = (b << 12) | (b >> 20)
    a = tl.add(a, b, sanitize_overflow=False)
    d ^= a
    d = (d << 8) | (d >> 24)
    c = tl.add(c, d, sanitize_overflow=False)
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


def _halves(word: tl.tensor) -> tl.tuple:
    """Return the low and the high 32 bits of 64: uint32, uint32."""
    return word.to(tl.uint32), (word >> 32).to(tl.uint32)


def _joined(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """Join two halves to a 64-bit word: uint64."""
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


def _key_stream(
    k0: tl.int64,
    k1: tl.int64,
    k2: tl.int64,
    k3: tl.int64,
    start: tl.int64,
    nonce: tl.int64,
    BLOCKS: tl.constexpr,
) -> tl.tuple:
    """Return the sixteen words, each uint32[BLOCKS], of this program's blocks.

    The blocks of the first program begin at `start`.
    """
    s0 = tl.full([BLOCKS], 0x61707865, tl.uint32)  # "expand 32-byte k"
    s1 = tl.full([BLOCKS], 0x3320646E, tl.uint32)
    s2 = tl.full([BLOCKS], 0x79622D32, tl.uint32)
    s3 = tl.full([BLOCKS], 0x6B206574, tl.uint32)
    s4, s5 = _halves(tl.full([BLOCKS], k0, tl.uint64))
    s6, s7 = _halves(tl.full([BLOCKS], k1, tl.uint64))
    s8, s9 = _halves(tl.full([BLOCKS], k2, tl.uint64))
    s10, s11 = _halves(tl.full([BLOCKS], k3, tl.uint64))
    counter = tl.full([BLOCKS], start, tl.uint64) + tl.program_id(0).to(tl.uint64) * BLOCKS
    s12, s13 = _halves(counter + tl.arange(0, BLOCKS).to(tl.uint64))
    s14, s15 = _halves(tl.full([BLOCKS], nonce, tl.uint64))
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s15
    for _ in tl.static_range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        tl.add(x0, s0, sanitize_overflow=False),
        tl.add(x1, s1, sanitize_overflow=False),
        tl.add(x2, s2, sanitize_overflow=False),
        tl.add(x3, s3, sanitize_overflow=False),
        tl.add(x4, s4, sanitize_overflow=False),
        tl.add(x5, s5, sanitize_overflow=False),
        tl.add(x6, s6, sanitize_overflow=False),
        tl.add(x7, s7, sanitize_overflow=False),
        tl.add(x8, s8, sanitize_overflow=False),
        tl.add(x9, s9, sanitize_overflow=False),
        tl.add(x10, s10, sanitize_overflow=False),
        tl.add(x11, s11, sanitize_overflow=False),
        tl.add(x12, s12, sanitize_overflow=False),
        tl.add(x13, s13, sanitize_overflow=False),
        tl.add(x14, s14, sanitize_overflow=False),
        tl.add(x15, s15, sanitize_overflow=False),
    )


def _normal_pair(w0: tl.tensor, w1: tl.tensor, w2: tl.tensor, w3: tl.tensor) -> tl.tuple:
    """Make two independent standard normal values of four words, by Box-Muller: float64, float64.

    The radius takes the bits that an angle of float64 cannot hold: see `noise_grid`.
    """
    turn = _joined(w2, w3)
    finer = ((turn & 2047).to(tl.float64) + 0.5) * 2.0**-11
    uniform = (_joined(w0, w1).to(tl.float64) + finer) * 2.0**-64
    angle = (turn >> 11).to(tl.float64) * (2.0**-53 * 6.283185307179586)
    radius = tl.sqrt(tl.log(uniform) * -2.0)
    return radius * tl.cos(angle), radius * tl.sin(angle)


def _woven(
    v0: tl.tensor,
    v1: tl.tensor,
    v2: tl.tensor,
    v3: tl.tensor,
    v4: tl.tensor,
    v5: tl.tensor,
    v6: tl.tensor,
    v7: tl.tensor,
) -> tl.tensor:
    """Return the values of block 0, then those of block 1, and so on, from eight vectors over blocks."""
    even = tl.interleave(tl.interleave(v0, v4), tl.interleave(v2, v6))
    odd = tl.interleave(tl.interleave(v1, v5), tl.interleave(v3, v7))
    return tl.interleave(even, odd)


def _write_words(
    out: tl.tensor,
    n_blocks: tl.int64,
    k0: tl.int64,
    k1: tl.int64,
    k2: tl.int64,
    k3: tl.int64,
    start: tl.int64,
    nonce: tl.int64,
    BLOCKS: tl.constexpr,
) -> None:
    w = _key_stream(k0, k1, k2, k3, start, nonce, BLOCKS)
    even = _woven(w[0], w[2], w[4], w[6], w[8], w[10], w[12], w[14])
    odd = _woven(w[1], w[3], w[5], w[7], w[9], w[11], w[13], w[15])
    index = tl.program_id(0).to(tl.int64) * (16 * BLOCKS) + tl.arange(0, 16 * BLOCKS)
    words = tl.interleave(even, odd).to(tl.int32, bitcast=True)
    tl.store(out + index, words, mask=index < n_blocks * 16)


def _add_normal(
    data: tl.tensor,
    n: tl.int64,
    skip: tl.int64,
    scale: tl.float64,
    shift: tl.float64,
    k0: tl.int64,
    k1: tl.int64,
    k2: tl.int64,
    k3: tl.int64,
    start: tl.int64,
    nonce: tl.int64,
    BLOCKS: tl.constexpr,
) -> None:
    """Add noise to a tensor; the first `skip` values of block `start` belong to indices before the tensor's."""
    w = _key_stream(k0, k1, k2, k3, start, nonce, BLOCKS)
    z0, z1 = _normal_pair(w[0], w[1], w[2], w[3])
    z2, z3 = _normal_pair(w[4], w[5], w[6], w[7])
    z4, z5 = _normal_pair(w[8], w[9], w[10], w[11])
    z6, z7 = _normal_pair(w[12], w[13], w[14], w[15])
    noise = scale * _woven(z0, z1, z2, z3, z4, z5, z6, z7)
    index = tl.program_id(0).to(tl.int64) * (8 * BLOCKS) + tl.arange(0, 8 * BLOCKS) - skip
    inside = (index >= 0) & (index < n)
    value = tl.load(data + index, mask=inside, other=0.0).to(tl.float64)
    noisy = (value + noise + shift) - shift
    tl.store(data + index, noisy.to(tl.float32), mask=inside)


@functools.cache
def _kernels() -> dict[str, Any]:
    """Return the functions above as Triton functions, by name; a kernel is compiled at its first launch.

    They replace the plain functions in this module, where Triton looks up the names that a function uses. Triton would
    compile again for arguments that are 1 or divisible by 16. Some keys are, once in a few streams, and must not cost
    seconds.
    """
    try:
        import triton
        import triton.language
    except ImportError as error:
        raise InputError(
            "noise on the GPU needs Triton, which is not here: install torch's build for GPUs, or `triton` itself"
        ) from error
    module = globals()
    module["tl"] = triton.language
    for function in (
        _quarter_round,
        _halves,
        _joined,
        _key_stream,
        _normal_pair,
        _woven,
        _write_words,
        _add_normal,
    ):
        arguments = [name for name in inspect.signature(function).parameters if name != "BLOCKS"]
        module[function.__name__] = triton.jit(function, do_not_specialize=arguments)
    return {name: module[name] for name in ("_write_words", "_add_normal")}
