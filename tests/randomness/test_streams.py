from threading import Barrier, Event, get_ident
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from confide.randomness import streams as noise
from confide.randomness.noise_grid import shift_of, step_of
from confide.randomness.streams import (
    BLOCK,
    GROUPS,
    PAIRS,
    FastStream,
    RunKey,
    Stream,
    add_noise,
    tells_units,
)
from confide.utils.errors import InputError

KEY = RunKey.from_text("test")


def test_words_are_those_of_aes_ctr_by_the_nist_vector():
    # NIST SP 800-38A, F.5.5 (CTR-AES256.Encrypt): key stream = ciphertext xor plaintext.
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    cipher = bytes.fromhex("601ec313775789a5b7a7f504bbf3d228")
    expected = np.frombuffer(bytes(a ^ b for a, b in zip(plain, cipher, strict=True)), "<u8")
    assert (Stream(key).uint64(2, 2 * counter) == expected).all()


def test_any_index_gives_the_same_value_wherever_one_starts():
    stream = KEY.stream("main", "noise", 3, "weight")
    for values in (stream.uint64, stream.normal):
        whole = np.asarray(values(1000))
        for start, n in ((0, 7), (1, 8), (499, 1), (500, 500), (999, 1)):
            assert (np.asarray(values(n, start)) == whole[start : start + n]).all()


@pytest.mark.parametrize(
    "other", [("b", "noise", 0, "w"), ("a", "draw", 0, "w"), ("a", "noise", 1, "w"), ("a", "noise", 0, "v")]
)
def test_streams_of_another_domain_differ(other):
    here = KEY.stream("a", "noise", 0, "w").uint64(64)
    there = KEY.stream(*other).uint64(64)
    assert not (here == there).any()


def test_domains_cannot_run_into_each_other():
    assert (KEY.stream("a", "b1", 1).uint64(4) != KEY.stream("a", "b", 11).uint64(4)).any()


def test_another_key_gives_another_stream():
    assert (KEY.stream("a", "b").uint64(8) != RunKey.from_text("other").stream("a", "b").uint64(8)).all()


def test_normal_values_are_normal():
    from scipy import stats

    values = KEY.stream("main", "noise").normal(400_000).double().numpy()
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert abs(values.mean()) < 5 / 400_000**0.5
    assert abs(values.std() - 1) < 5 / 800_000**0.5
    for lag in (1, PAIRS):  # neighbours, and the two of a pair
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / 400_000**0.5
    # A tail cut at 3 or 4 standard deviations would show here: 2 * 400,000 * P(Z > 4) is 25.
    assert 5 < (abs(values) > 4).sum() < 55


def words_of(stream, groups=GROUPS):
    """The words that normal values are made of: of radii int64, of angles int32, and what refines both, uint32."""
    room = noise._Room(groups)
    stream._fill_groups(room, 0, groups, 0)
    return (
        room.words[:, : 2 * PAIRS].view("<i8").astype(float),
        room.words[:, 2 * PAIRS :].astype(float),
        room.low.copy(),
    )


def test_normal_values_are_box_muller_of_the_words():
    """Whatever code NumPy has for this processor: a logarithm or a tangent of few bits would make other noise."""
    stream = KEY.stream("main", "noise")
    drawn, high, low = words_of(stream)
    radius = np.sqrt(-2 * np.log((abs(drawn) + (low % 2048 + 0.5) / 2048) * 2.0**-63))
    angle = (high + (low >> 11) * 2.0**-21) * (np.pi * 2.0**-31)
    expected = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    found = stream.normal(BLOCK)
    assert found.dtype == torch.float64
    off = abs(found.numpy().reshape(expected.shape) - expected).max(1)
    assert (off < 64 * 2.0**-52 * np.maximum(radius, 2.0**-20)).all()


def test_far_out_circles_are_no_sparser_than_the_grid():
    """The two values of one radius lie on a circle. Who knew all circles could tell which sum leads to one."""
    room = noise._Room(1)
    room.words[:, : 2 * PAIRS].view("<i8")[:] = 1  # a radius of 9.3, of which the next would be at 9.2
    room.words[:, 2 * PAIRS :] = 0
    room.low[0] = np.arange(PAIRS)  # the finest bits of the radius, all others alike
    cosine = room.normal(1, 1.0)[:PAIRS]
    steps = -np.diff(np.sort(cosine)[::-1])
    assert ((steps > 0) & (steps < 2.0**-13)).all()


def test_no_words_are_used_twice():
    drawn, high, low = (each.ravel() for each in words_of(KEY.stream("main", "noise"), 8))
    assert not np.isin(high % 2**32, low).any()
    assert len(set(drawn)) == len(drawn)


def test_a_value_of_all_bits_is_no_rarer_than_others():
    """Of float32 values every one would pass; of those between, 2^-29."""
    values = KEY.stream("main", "noise").normal(BLOCK)
    assert (values == values.float().double()).sum() < 3
    assert (values != 0).all()


def on_grid(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Round float64 values to the grid of noise of a scale, and to float32."""
    step = step_of(scale)
    return (torch.round(values / step) * step).float()


def test_a_sum_is_rounded_once_after_its_noise():
    sums = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    exact = on_grid(sums.double() + 2.5 * KEY.stream("main", "noise").normal(BLOCK), 2.5)
    found = sums.clone()
    add_noise([(found, KEY.stream("main", "noise"), 0)], 2.5)
    before = sums + on_grid(2.5 * KEY.stream("main", "noise").normal(BLOCK), 2.5)
    assert (found == exact).float().mean() > 0.9999  # else by one step, as the product is rounded before
    assert (before == exact).float().mean() < 0.95


@pytest.mark.parametrize("kind", [lambda stream: stream, FastStream], ids=["secure", "fast"])
@pytest.mark.parametrize("scale", [1e-30, 0.7, 1.0, 300.0])
def test_values_near_zero_show_no_digits_that_another_sum_would_not_have(kind, scale):
    """Sums of zero keep all digits of the noise; other sums do not. What lies on one grid tells them not apart."""
    step = step_of(scale)
    assert scale * 2.0**-13 < step <= scale * 2.0**-12
    for of_scale in (0.0, 0.3, 1.7):
        found = torch.full((BLOCK // 4,), of_scale * scale)
        add_noise([(found, kind(KEY.stream("main", "noise")), 0)], scale)
        steps = found.double() / step
        assert torch.equal(steps, steps.round())
        assert (found.abs() < scale / 100).sum() > 100  # there floats lie far closer than the grid


def test_sums_far_beyond_the_noise_and_sums_without_noise_stay_as_they_are():
    sums = torch.tensor([1e9, -3e20, 1e-20, 0.0])
    for scale in (1.0, 0.0):
        found = sums.clone()
        add_noise([(found, KEY.stream("main", "noise"), 0)], scale)
        assert torch.equal(found[:2], sums[:2])
        assert torch.equal(found[2:], sums[2:]) == (scale == 0)


def test_the_tail_is_as_long_as_its_bits_make_it():
    class Smallest(Stream):
        def _encrypt(self, words, mode):
            words[:] = 0

    assert Smallest(b"").normal(1).item() == pytest.approx((2 * np.log(2.0**75)) ** 0.5)


def test_integers_are_uniform_below_their_limits():
    drawn = KEY.stream("main", "rows").below(np.full(60_000, 6))
    counts = np.bincount(drawn, minlength=6)
    assert len(counts) == 6
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 30


def test_noise_has_the_stated_size_and_crosses_blocks():
    tensor = torch.zeros(3, BLOCK)
    add_noise([(tensor, KEY.stream("main", "noise"), 0)], 2.5)
    assert tensor.std().item() == pytest.approx(2.5, rel=0.01)
    assert torch.equal(
        tensor.view(-1)[BLOCK - 1 : BLOCK + 1],
        on_grid(2.5 * KEY.stream("main", "noise").normal(2, BLOCK - 1), 2.5),
    )


def test_the_values_of_which_noise_is_made_are_told():
    """To the bit those that are made again where a run is resumed; and the noised sums are those without them."""
    vectors = [
        torch.randn(size, generator=torch.Generator().manual_seed(size)) for size in (3, 2 * BLOCK + 5)
    ]
    starts, source = (7, 0), KEY.stream("main", "noise")

    def noised(made, scale, **options):
        add_noise([(each, source, start) for each, start in zip(made, starts, strict=True)], scale, **options)
        return made

    alone = noised([each.clone() for each in vectors], 2.5, times=0.5)
    units = [torch.zeros_like(each) for each in vectors]
    told = noised([each.clone() for each in vectors], 2.5, times=0.5, units=units)
    again = noised([torch.zeros_like(each) for each in vectors], 1.0, on_grid=False)
    for one, other, unit, made in zip(alone, told, units, again, strict=True):
        assert torch.equal(unit, made)
        assert torch.allclose(one, other, rtol=0, atol=0.5 * 1.01 * step_of(2.5))
        assert (one == other).float().mean() > 0.9999
    assert tells_units([(vectors[0], source, 0)])
    assert not tells_units([(vectors[0], FastStream(source), 0)])


def test_noise_far_smaller_than_one_is_not_rounded_away():
    values = torch.zeros(BLOCK)
    add_noise([(values, KEY.stream("main", "noise"), 0)], 1e-30)
    assert torch.allclose(values.double() * 1e30, KEY.stream("main", "noise").normal(BLOCK), 1e-6, 2.0**-13)


def test_fast_noise_is_repeatable_and_normal():
    first, second = (torch.zeros(BLOCK + 5) for _ in range(2))
    for tensor in (first, second):
        add_noise([(tensor, FastStream(KEY.stream("main", "noise")), 0)], 1.0)
    assert torch.equal(first, second)
    assert first.std().item() == pytest.approx(1.0, rel=0.01)


def test_key_file_is_private_and_a_readable_one_is_refused(tmp_path):
    path = tmp_path / "key"
    key = RunKey.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert (RunKey.load(path).stream("a", "b").uint64(4) == key.stream("a", "b").uint64(4)).all()
    path.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        RunKey.load(path)


def test_key_does_not_show_itself(tmp_path):
    key = RunKey.create(tmp_path / "key")
    secret = (tmp_path / "key").read_bytes()
    assert secret.hex() not in repr(key)
    assert repr(secret) not in repr(key)


def test_fingerprint_needs_the_key():
    """Pitfall 31: a plain hash of data would be an oracle for guesses."""
    import hashlib

    data = b"the secret is 42"
    assert KEY.fingerprint(data) != RunKey.from_text("other").fingerprint(data)
    assert KEY.fingerprint(data) != hashlib.sha256(data).hexdigest()


def test_cipher_mode_is_counter():
    """The stream is the encryption of zeros in CTR mode: what a reader would expect, nothing home-made."""
    key = bytes(range(32))
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    assert Stream(key).uint64(8).tobytes() == cipher.update(bytes(64))


def test_noise_is_of_the_cipher_in_counter_mode_wherever_one_starts():
    """GCM is CTR behind a nonce: each block of groups has the next nonce, and no counter is met twice.

    Nor is one of `uint64`'s, which begin at 0.
    """
    key = bytes(range(32))

    def expected(kind: int, size: int) -> bytes:
        found = b""
        for block in range(3):
            counter = (kind + block).to_bytes(12, "big") + (2).to_bytes(4, "big")
            found += Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(size * GROUPS))
        return found

    for first, groups in (
        (0, 1),
        (0, 3 * GROUPS),
        (GROUPS - 1, 2),
        (5, GROUPS),
        (7, 2 * GROUPS),
        (GROUPS, 3),
    ):
        room = noise._Room(groups + 1)
        Stream(key)._fill_groups(room, 1, groups, first)
        for words, kind in ((room.words, 1 << 95), (room.low, 3 << 94)):
            size = 4 * words.shape[1]  # bytes of a group
            whole = expected(kind, size)
            assert words[1:].tobytes() == whole[first * size : (first + groups) * size]


def test_another_config_or_other_data_draw_afresh():
    here = KEY.bound_to(b"config", b"data").stream("main", "noise").uint64(8)
    assert (here == KEY.bound_to(b"config", b"data").stream("main", "noise").uint64(8)).all()
    for other in ((b"config2", b"data"), (b"config", b"data2"), (b"configd", b"ata")):
        assert (here != KEY.bound_to(*other).stream("main", "noise").uint64(8)).all()


def test_a_tensor_on_a_gpu_gets_its_noise_there_under_a_key_of_its_own(monkeypatch):
    calls = []

    class Recorder:
        def __init__(self, key: bytes):
            self.key = key

        def add_normal(self, tensor, scale, start, shift):
            assert shift == shift_of(scale)
            calls.append((self.key, tensor, scale, start))

    monkeypatch.setattr(noise, "ChaChaStream", Recorder)
    scaled: list[float] = []
    tensor = SimpleNamespace(is_cuda=True, mul_=scaled.append)
    for step in (0, 1):
        add_noise([(tensor, KEY.stream("main", "noise", step), 7)], 2.5, 0.5)
    (first, *rest), (second, *_) = calls
    assert rest == [tensor, 2.5, 7]
    assert scaled == [0.5, 0.5]
    assert first != second
    assert len(first) == 32
    assert first != KEY.stream("main", "noise", 0)._key  # one key, one cipher


@pytest.mark.parametrize("kind", [lambda stream: stream, FastStream], ids=["secure", "fast"])
@pytest.mark.parametrize("start", [5, BLOCK, 2 * BLOCK + 3])
def test_a_part_of_a_tensor_gets_noise_of_its_own(kind, start):
    """What two ranks add to two parts of one tensor must not be the same values."""
    first, second = torch.zeros(start), torch.zeros(1000)
    add_noise([(first, kind(KEY.stream("main", "noise")), 0)], 1.0)
    add_noise([(second, kind(KEY.stream("main", "noise")), start)], 1.0)
    n = min(start, len(second))
    for other in (first[:n], first[-n:]):
        assert float((other == second[:n]).float().mean()) < 0.01
    assert abs(float(second.std()) - 1) < 0.1


def test_parts_add_up_to_the_whole():
    whole = torch.zeros(2 * BLOCK + 100)
    add_noise([(whole, KEY.stream("main", "noise"), 0)], 1.5)
    for start, stop in ((0, 11), (11, BLOCK + 6), (BLOCK + 6, 2 * BLOCK + 100)):
        part = torch.zeros(stop - start)
        add_noise([(part, KEY.stream("main", "noise"), start)], 1.5)
        assert torch.equal(part, whole[start:stop])


@pytest.fixture
def threads():
    """Sets how many threads torch, and so noise, may use."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_noise_is_the_same_however_many_threads_there_are(threads, number, monkeypatch):
    sources = [KEY.stream("main", "noise", step) for step in range(3)]
    sizes, starts = (8 * BLOCK + 5, 3, 3 * BLOCK), (7, 0, 1000)
    add_block, workers, together = noise._add_block, set(), Barrier(number, timeout=60)

    def noted(*args):
        if get_ident() not in workers:
            workers.add(get_ident())
            together.wait()  # every thread has begun, and has a block of its own
        add_block(*args)

    monkeypatch.setattr(noise, "_add_block", noted)
    threads(number)
    found = [torch.ones(size) for size in sizes]
    add_noise(list(zip(found, sources, starts, strict=True)), 2.0, 0.25)
    assert len(workers) == number
    for own, source, start in zip(found, sources, starts, strict=True):
        assert torch.allclose(
            own.double(), (1 + 2 * source.normal(len(own), start)) / 4, atol=step_of(2.0) / 4
        )


def test_a_thread_that_fails_ends_the_step(threads, monkeypatch):
    """Else a sum of which a part has no noise would be used."""
    add_block, main, others = noise._add_block, get_ident(), Event()

    def failing(*args):
        if get_ident() != main:
            others.set()
            raise MemoryError("no room")
        assert others.wait(60)
        add_block(*args)

    monkeypatch.setattr(noise, "_add_block", failing)
    threads(2)
    with pytest.raises(MemoryError, match="no room"):
        add_noise([(torch.zeros(6 * BLOCK), KEY.stream("main", "noise"), 0)], 1.0)


def test_fast_noise_of_many_parts_repeats_nothing():
    """Several ranks each draw their part of a tensor, of a size that fits no block."""
    parts = []
    for number in range(5):
        part = torch.zeros(17)
        add_noise([(part, FastStream(KEY.stream("main", "noise")), 17 * number)], 1.0)
        parts.append(part)
    for number, part in enumerate(parts):
        for other in parts[:number]:
            assert (part == other).float().mean() < 0.2


def test_fast_noise_needs_all_bits_of_its_key_to_meet_before_it_repeats():
    """A generator with a seed of 32 bits gives two of a run's hundred thousands of tensors one noise."""

    class Keyed:
        def __init__(self, *words):
            self.words = np.array(words, np.uint64)

        def uint64(self, n, start):
            return self.words[:n]

    def values(*words):
        return FastStream(Keyed(*words)).normal(100)

    assert torch.equal(values(5, 6), values(5, 6))
    for other in ((5 + (7 << 32), 6), (5, 6 + (7 << 32)), (5 + (1 << 63), 6), (6, 5)):
        assert float((values(*other) == values(5, 6)).float().mean()) < 0.05
