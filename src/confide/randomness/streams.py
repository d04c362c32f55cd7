"""All randomness of a run: secret streams, each a function of the run key and of its purpose.

A stream is AES-256 in counter mode under a key derived from (run key, phase, purpose, step, item). Noise for
tensors on a GPU is ChaCha20, computed there. So there is no generator state to save: a run that is killed and
started again draws the same rows and the same noise, and no state can end up in a published checkpoint.
Streams of different purposes are independent under the usual assumption that these ciphers and HMAC are
pseudo-random functions.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from confide.randomness.chacha_gpu import ChaChaStream
from confide.randomness.noise_grid import shift_of
from confide.utils.errors import InputError
from confide.utils.files import sync

if TYPE_CHECKING:  # draws need no tensors, and torch takes seconds to import
    import torch

KEY_BYTES = 32
# Values that a thread makes at a time, so that noise needs no second copy of the model. Between its calls a thread
# waits for Python's lock: with smaller blocks, which a cache would hold, two threads lose more than they gain.
BLOCK = 1 << 19
# Pairs of normal values that are made together: 8 bytes for each radius, then 4 and 4 for each angle.
PAIRS = 256
GROUP = 2 * PAIRS
GROUPS = BLOCK // GROUP  # groups under one nonce
LAYOUT = 10  # of noise in its stream; a run that began with another layout cannot be resumed
_FIRST = 1 << 95  # nonce of normal values: of radii and the high half of angles
_LOW = _FIRST | 1 << 94  # of what refines both, which came later: the other words stay where they always were
_FINER = 11  # bits of such a word that refine the radius; the others refine the angle
_WORDS = 1 << 18  # words of a block of draws: what a processor's cache holds
_ZEROS = bytes(6 * BLOCK)


class Normal(Protocol):
    """A source of standard normal values by index."""

    def normal(self, n: int, start: int = 0) -> torch.Tensor: ...


class Stream:
    """Random words of one (phase, purpose, step, item), addressable by index."""

    def __init__(self, key: bytes):
        self._key = key

    def on_gpu(self) -> ChaChaStream:
        """Return the stream of the same purpose for tensors on a GPU: other words, with the same secrecy."""
        return ChaChaStream(hmac.digest(self._key, b"chacha20", "sha256"))

    def uint64(self, n: int, start: int = 0) -> np.ndarray:
        """Return `n` uniform 64-bit words from index `start` on: uint64[n]."""
        first, skip = divmod(start, 2)
        words = np.empty(n + skip, dtype="<u8")
        self._fill(words, first)
        return words[skip:]

    def uniform(self, n: int, start: int = 0) -> np.ndarray:
        """Return `n` uniform values in [0, 1) with 53 random bits: float64[n]."""
        return (self.uint64(n, start) >> np.uint64(11)) * 2.0**-53

    def below(self, limits: np.ndarray, start: int = 0) -> np.ndarray:
        """Return one integer in [0, limit) for each limit: int64[n]. Bias below limit * 2^-53."""
        values: np.ndarray = np.floor(self.uniform(len(limits), start) * limits).astype(np.int64)
        return values

    def chosen(self, rates: float | np.ndarray, n: int, least: float = 0.0) -> np.ndarray:
        """Return the items out of n with `uniform` values below their rate, not below `least`: ascending, int64[m].

        The words are made and compared block by block, so memory does not grow with n. A comparison of whole words is
        the same as one of the values: a value is a multiple of 2^-53, and rate * 2^53 is exact.

        Args:
            rates: one probability for all, or float64[n].
            n: number of items.
            least: the same for all; with it, consecutive ranges of values share out all items among them.
        """
        found = []
        words = np.empty(min(_WORDS, n + n % 2), dtype="<u8")
        for first in range(0, n, _WORDS):
            some = words[: min(_WORDS, n - first)]
            self._fill(some, first // 2)
            own = rates[first : first + len(some)] if isinstance(rates, np.ndarray) else rates
            is_chosen = _below(some, own)
            if least > 0:
                is_chosen &= ~_below(some, least)
            places = np.flatnonzero(is_chosen)
            found.append(places + first)
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def permutation(self, n: int) -> np.ndarray:
        """Return a uniform order of 0..n-1: int64[n]."""
        return np.argsort(self.uint64(n), kind="stable")

    def normal(self, n: int, start: int = 0) -> torch.Tensor:
        """Return `n` standard normal values: float64[n].

        Box-Muller with radii of 74 bits and angles of 53, so that the tail reaches 10.2 standard deviations: no tail
        that matters to delta is cut off, as 24- or 32-bit uniforms would cut it. In float32 the two values of a pair
        would have few neighbours, and whoever knows a sum without noise could tell it from another by what is
        impossible (Mironov 2012). Float64 leaves that to sums very near zero; the grid of noise ends it there.
        """
        import torch

        first, skip = divmod(start, GROUP)
        room = _Room(_groups(skip + n))
        self._fill_groups(room, 0, len(room.words), first)
        return torch.from_numpy(room.normal(len(room.words), 1.0))[skip : skip + n]

    def _fill_groups(self, room: _Room, place: int, count: int, first: int) -> None:
        """Write the words of so many groups of normal values, from number `first` on, into a room from `place` on."""
        self._fill_words(room.words[place : place + count], first, _FIRST)
        self._fill_words(room.low[place : place + count], first, _LOW)

    def _fill_words(self, words: np.ndarray, first: int, nonces: int) -> None:
        """Write one kind of words of groups, from number `first` on: int32[groups, words of a group].

        The counter is a nonce of 96 bits, the number of a block of groups, and 32 bits that count from 2 on. This is
        the counter of GCM, for which OpenSSL has faster code than for plain CTR, which can start anywhere. The nonce's
        first bit is set, so that no word is one of `uint64`, whose counters never get that large.
        """
        place = 0
        while place < len(words):
            number, inside = divmod(first + place, GROUPS)
            nonce = (nonces + number).to_bytes(12, "big")
            some = words[place : place + GROUPS - inside]
            counter = 2 + inside * words.shape[1] * 4 // 16
            self._encrypt(some, modes.CTR(nonce + counter.to_bytes(4, "big")) if inside else modes.GCM(nonce))
            place += len(some)

    def _fill(self, words: np.ndarray, block: int) -> None:
        """Write the output of the cipher, from a block of 16 bytes on, into an array."""
        self._encrypt(words, modes.CTR(block.to_bytes(16, "big")))

    def _encrypt(self, words: np.ndarray, mode: modes.CTR | modes.GCM) -> None:
        """Write the key stream, the encryption of zeros, into an array."""
        plain = memoryview(_ZEROS)[: words.nbytes] if words.nbytes <= len(_ZEROS) else bytes(words.nbytes)
        Cipher(algorithms.AES(self._key), mode).encryptor().update_into(plain, words.data.cast("B"))


def _below(words: np.ndarray, rates: float | np.ndarray) -> np.ndarray:
    """Tell which words, as multiples of 2^-53 by their first 53 bits, are below a rate: bool[n]."""
    if isinstance(rates, np.ndarray):
        return np.asarray((words >> np.uint64(11)) * 2.0**-53 < rates)
    limit = math.ceil(rates * 2.0**53) << 11
    return np.ones(len(words), bool) if limit >= 1 << 64 else np.asarray(words < np.uint64(limit))


def _groups(n: int) -> int:
    """Return how many groups hold `n` values."""
    return -(-n // GROUP)


class _Room:
    """Working memory of one thread for normal values: block after block uses the same memory, which stays in its cache.

    NumPy computes the values in float64. Its tangent is several times as fast there as sine and cosine, of which half
    the angle's tangent makes both. The last bits may differ between processors.

    Attributes:
        words: random words of groups, int32[groups, 3 * PAIRS].
        low: words that refine radii and angles, uint32[groups, PAIRS].
    """

    def __init__(self, groups: int):
        self.words = np.empty((groups, 3 * PAIRS), "<i4")
        self.low = np.empty((groups, PAIRS), "<u4")
        self._radius, self._tangent = (np.empty((groups, PAIRS)) for _ in range(2))
        self._values = np.empty((groups, 2, PAIRS))

    def normal(self, groups: int, scale: float) -> np.ndarray:
        """Turn the words of so many groups into values of N(0, scale^2): float64[groups * GROUP].

        The result is valid until the next call.
        """
        words, low, values = self.words[:groups], self.low[:groups], self._values[:groups]
        radius, tangent = self._radius[:groups], self._tangent[:groups]
        cosine, sine = values[:, 0], values[:, 1]
        # A signed word's size is uniform in [0, 2^63], but that the ends have half the weight. Only small ones keep
        # the bits that refine them, and need them: far out, circles would else be sparse. Half a step is added, so
        # that no radius is infinite.
        np.copyto(radius, words[:, :GROUP].view("<i8"), casting="unsafe")
        np.abs(radius, out=radius)
        np.bitwise_and(low, (1 << _FINER) - 1, out=sine, casting="unsafe")
        np.add(sine, 0.5, out=sine)
        np.multiply(sine, 2.0**-_FINER, out=sine)
        np.add(radius, sine, out=radius)
        np.multiply(radius, 2.0**-63, out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, -2.0, out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(radius, scale, out=radius)
        # The tangent t of half an angle in [-pi / 2, pi / 2]: its cosine is (1 - t^2) / (1 + t^2), its sine 2 t / ...
        np.copyto(tangent, words[:, GROUP:], casting="unsafe")
        np.right_shift(low, _FINER, out=sine, casting="unsafe")
        np.multiply(sine, 2.0 ** (_FINER - 32), out=sine)
        np.add(tangent, sine, out=tangent)
        np.multiply(tangent, math.pi * 2.0**-32, out=tangent)
        np.tan(tangent, out=tangent)
        np.multiply(tangent, tangent, out=cosine)
        np.add(cosine, 1.0, out=sine)
        np.divide(radius, sine, out=radius)
        np.subtract(1.0, cosine, out=cosine)
        np.multiply(cosine, radius, out=cosine)
        np.multiply(tangent, radius, out=sine)
        np.multiply(sine, 2.0, out=sine)
        return values.reshape(-1)


class FastStream:
    """An ordinary generator in place of AES, for `noise: fast`; the guarantee says so.

    It is Philox: on the CPU NumPy's with a key of 128 bits, on a GPU the framework's with 63. Steps and tensors with
    equal keys would share their noise. With keys of 32 bits, as in torch's own generator on a CPU, that is likely
    within one run.

    It is not addressable by index: a run of values is drawn in order, in blocks, from a key that depends on where it
    begins. So the values of a part of a tensor do not depend on the other parts, but differ from those in the whole.
    """

    def __init__(self, stream: Stream, device: torch.device | str = "cpu"):
        import torch

        self._stream = stream
        self._device = torch.device(device)
        self._on_cpu: np.random.Generator | None = None
        self._on_gpu: torch.Generator | None = None
        self._next = -1

    def normal(self, n: int, start: int = 0) -> torch.Tensor:
        import torch

        if start != self._next:
            self._begin(self._stream.uint64(2, start))
        self._next = start + n
        if self._on_cpu is not None:
            return torch.from_numpy(self._on_cpu.standard_normal(n))
        return torch.randn(n, generator=self._on_gpu, device=self._device, dtype=torch.float64)

    def _begin(self, key: np.ndarray) -> None:
        import torch

        if self._device.type == "cpu":
            self._on_cpu = np.random.Generator(np.random.Philox(key=key))
        else:
            self._on_gpu = torch.Generator(self._device).manual_seed(int(key[0] >> np.uint64(1)))


def generator(kind: str, device: torch.device, parts: int = 1) -> str:
    """Name the noise generator. Two generators produce different values from the same stream.

    Args:
        kind: `secure` or `fast`.
        device: where the tensors lie.
        parts: over how many ranks each tensor is split.
    """
    if kind == "secure":
        return "chacha20" if device.type == "cuda" else "aes"
    return f"philox, on {device.type}" + (f" in {parts} parts" if parts > 1 else "")


def add_noise(
    vectors: Iterable[tuple[torch.Tensor, Normal, int]],
    scale: float,
    times: float = 1.0,
    on_grid: bool = True,
    units: Sequence[torch.Tensor] | None = None,
) -> None:
    """Make every element x of contiguous float32 tensors (x + N(0, scale^2)) * times, in place.

    The noise is float64 and so is the sum. It is rounded to a grid (`noise_grid`) and to float32, and then multiplied.

    Args:
        vectors: (tensor, source, start); the tensor's first element takes the source's value `start`, which is
            not 0 for a tensor that is part of a larger one.
        on_grid: False where x is zero, and what is made is no noised sum but noise to be taken back from one.
        units: contiguous float32 tensors, one for each of `vectors`, to which the values of N(0, 1) are added of which
            the noise is made, each rounded to float32. Only where `tells_units` says so.
    """
    shift = shift_of(scale) if on_grid else 0.0
    segments: list[_Segment] = []
    for number, (tensor, source, start) in enumerate(vectors):
        if units is not None and (tensor.is_cuda or not isinstance(source, Stream)):
            raise AssertionError("this source does not tell the values of which it makes noise")
        if not isinstance(source, Stream):
            _add_in_order(tensor.view(-1), source, scale, shift, start, times)
        elif tensor.is_cuda:
            source.on_gpu().add_normal(tensor, scale, start, shift)
            tensor.mul_(times)
        else:
            flat = tensor.view(-1).numpy()
            unit = None if units is None else units[number].view(-1).numpy()
            for place in range(0, len(flat), BLOCK):
                here = slice(place, place + BLOCK)
                own = None if unit is None else unit[here]
                segments.append(_Segment(flat[here], source, start + place, own))
    if segments:
        _add_segments(segments, scale, shift, np.float32(times))


def tells_units(vectors: Iterable[tuple[torch.Tensor, Normal, int]]) -> bool:
    """Return True if `add_noise` can tell the values of N(0, 1) of which it makes the noise of these tensors."""
    return all(isinstance(source, Stream) and not tensor.is_cuda for tensor, source, _ in vectors)


@dataclass(frozen=True)
class _Segment:
    """Part of a tensor on the CPU, the position of its noise in a stream, and what N(0, 1) is added to, if anything."""

    values: np.ndarray
    source: Stream
    start: int
    units: np.ndarray | None = None

    @property
    def groups(self) -> int:
        return _groups(self.start % GROUP + len(self.values))


def _add_segments(segments: list[_Segment], scale: float, shift: float, times: np.float32) -> None:
    """Add noise to all segments, block by block, in as many threads as torch uses."""
    import torch

    left = deque(_blocks(segments))
    largest = max(sum(segment.groups for segment in block) for block in left)

    def work() -> None:
        room = _Room(largest)
        while True:
            try:
                block = left.popleft()
            except IndexError:
                return
            _add_block(block, room, scale, shift, times)

    # Starting another thread takes as long as half a block.
    others = min(torch.get_num_threads(), len(left) // 2) - 1
    if others < 1:
        work()
        return
    with ThreadPoolExecutor(others) as pool:
        running = [pool.submit(work) for _ in range(others)]
        work()
        for one in running:
            one.result()


def _blocks(segments: list[_Segment]) -> Iterator[list[_Segment]]:
    """Yield groups of segments to be processed together, since calls for each small tensor would dominate the time."""
    block: list[_Segment] = []
    groups = 0
    for segment in segments:
        if block and groups + segment.groups > GROUPS:
            yield block
            block, groups = [], 0
        block.append(segment)
        groups += segment.groups
    yield block


def _add_block(segments: list[_Segment], room: _Room, scale: float, shift: float, times: np.float32) -> None:
    place = 0
    for segment in segments:
        segment.source._fill_groups(room, place, segment.groups, segment.start // GROUP)
        place += segment.groups
    tells = segments[0].units is not None
    normal, place = room.normal(place, 1.0 if tells else scale), 0
    for segment in segments:
        first = GROUP * place + segment.start % GROUP
        values = segment.values
        noisy = normal[first : first + len(values)]
        if segment.units is not None:
            np.add(segment.units, noisy.astype(np.float32), out=segment.units)
            noisy *= scale
        noisy += values
        noisy += shift
        noisy -= shift
        np.copyto(values, noisy, casting="same_kind")
        values *= times
        place += segment.groups


def _add_in_order(
    flat: torch.Tensor, source: Normal, scale: float, shift: float, start: int, times: float
) -> None:
    for place in range(0, flat.numel(), BLOCK):
        some = flat[place : place + BLOCK]
        noisy = source.normal(some.numel(), start + place).to(some.device).mul_(scale).add_(some)
        some.copy_(noisy.add_(shift).sub_(shift)).mul_(times)


class RunKey:
    """The 32 secret bytes from which every draw and all noise of a run derive.

    Whoever knows the key can subtract the noise: it stays in the run folder with mode 600 and never goes
    into `release/`.
    """

    def __init__(self, secret: bytes, published: bool = False):
        if len(secret) != KEY_BYTES:
            raise InputError(f"a run key has {KEY_BYTES} bytes, this one has {len(secret)}")
        self._secret = secret
        self.published = published
        self._orders: dict[tuple[str, str], tuple[tuple[int, int], np.ndarray]] = {}

    def __repr__(self) -> str:
        return "RunKey(published)" if self.published else "RunKey(secret)"

    @classmethod
    def from_text(cls, text: str) -> RunKey:
        """Derive the key of a reproducible experiment; its guarantee holds against nobody who knows `text`."""
        return cls(hashlib.sha256(b"confide published key\0" + text.encode()).digest(), published=True)

    @classmethod
    def create(cls, path: Path) -> RunKey:
        """Create a fresh key from the operating system, and write it to `path` with mode 600."""
        secret = os.urandom(KEY_BYTES)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as stream:
            stream.write(secret)
            stream.flush()
            os.fsync(stream.fileno())
        sync(path.parent)  # the name must be on disk as well as the bytes
        return cls(secret)

    @classmethod
    def load(cls, path: Path) -> RunKey:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise InputError(f"{path} can be read by others (mode {mode:o}): run `chmod 600 {path}`")
        secret = path.read_bytes()
        if len(secret) != KEY_BYTES:
            raise InputError(
                f"{path} is damaged: a run key has {KEY_BYTES} bytes, this one has {len(secret)}"
            )
        return cls(secret)

    def stream(self, phase: str, purpose: str, step: int = 0, item: str = "") -> Stream:
        """Return the stream of one purpose; equal arguments give equal streams, different ones independent ones."""
        name = "\0".join(("confide 1", phase, purpose, str(step), item))
        return Stream(hmac.digest(self._secret, name.encode(), "sha256"))

    def order(self, phase: str, purpose: str, n: int, step: int = 0) -> np.ndarray:
        """Return the uniform order of 0..n-1 of one purpose, kept until another is asked for: uint32[n] or int64[n]."""
        known = self._orders.get((phase, purpose))
        if known is None or known[0] != (n, step):
            found = self.stream(phase, purpose, step).permutation(n)
            known = (n, step), found.astype(np.uint32) if n < 1 << 32 else found
            self._orders[phase, purpose] = known
        return known[1]

    def bound_to(self, *what: bytes) -> RunKey:
        """Derive the key of a run on this config and these data.

        If two different trainings used the same noise, their difference would be free of it. So everything that
        distinguishes two trainings goes into the key. A run folder that is partly wiped and used again with another
        config or other data therefore draws afresh.
        """
        digest = hmac.new(self._secret, b"bound to", "sha256")
        for part in what:
            digest.update(len(part).to_bytes(8, "big") + part)
        return RunKey(digest.digest(), self.published)

    def authenticator(self, *what: str) -> hmac.HMAC:
        """Return an HMAC to feed with data. `what` names the kind of data, and changes the value."""
        mac = hmac.new(self._secret, b"authenticate", "sha256")
        for part in what:
            mac.update(len(part.encode()).to_bytes(8, "big") + part.encode())
        mac.update(b"\xff" * 8)  # no length: whatever comes after is data
        return mac

    def fingerprint(self, data: bytes) -> str:
        """Compute an HMAC of `data`, hex: it names a config or data set without letting others test guesses of it."""
        return hmac.new(self._secret, b"fingerprint\0" + data, "sha256").hexdigest()
