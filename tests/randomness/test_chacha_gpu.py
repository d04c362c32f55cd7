"""ChaCha20 noise, by Triton's interpreter everywhere and compiled where there is a GPU.

Triton decides once, when it is imported, whether it interprets. So kernels run in a process of their own, and the
tests call functions of this module there.
"""

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from confide.randomness import chacha_gpu as chacha
from confide.randomness.chacha_gpu import ChaChaStream
from confide.randomness.noise_grid import step_of
from confide.utils.errors import InputError

KEY = bytes(range(32))
PROGRAM = 8 * chacha._BLOCKS  # values that one program of the grid makes
WIDE = 1 << 14  # blocks a program in the interpreter, whose time goes by programs and not by values
FULL = 1 << 32


def process(interpret: bool, **environment: str) -> ProcessPoolExecutor:
    """A process in which Triton interprets, or compiles."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not here")
    worker = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with mock.patch.dict(os.environ, environment, TRITON_INTERPRET="1" if interpret else "0"):
        worker.submit(os.getpid).result()
    return worker


# Functions for that process.


def make_words(device: str, key: bytes, n: int, start: int = 0, nonce: bytes = bytes(8)) -> np.ndarray:
    return ChaChaStream(key).words(n, start, device=device, nonce=nonce).cpu().numpy()


def make_noise(
    device: str, values: np.ndarray, scale: float = 1.0, start: int = 0, margin: int = 0, blocks: int = 0
) -> np.ndarray:
    """`values` with noise, all of them but `margin` at either end of the memory they lie in."""
    memory = torch.from_numpy(values).to(device)
    with mock.patch.object(chacha, "_BLOCKS", blocks or chacha._BLOCKS):
        ChaChaStream(KEY).add_normal(memory[margin : len(values) - margin], scale, start)
    return memory.cpu().numpy()


def make_noise_of_word(device: str, word: int) -> np.ndarray:
    """Eight values of key stream in which every 32-bit word is `word`."""
    import triton.language as tl

    def key_stream(*arguments: object) -> list:
        return [tl.full([arguments[-1]], word, tl.uint32)] * 16

    stream, tensor = ChaChaStream(KEY), torch.zeros(8, device=device)
    with mock.patch.object(chacha, "_key_stream", key_stream):
        stream.add_normal(tensor, 1.0)
    return tensor.numpy()


OTHERS = {
    "float64": lambda device: torch.zeros(4, dtype=torch.float64, device=device),
    "bfloat16": lambda device: torch.zeros(4, dtype=torch.bfloat16, device=device),
    "transposed": lambda device: torch.zeros(4, 4, device=device).T,
    "strided": lambda device: torch.zeros(8, device=device)[::2],
}


def add_to_other(device: str, name: str) -> None:
    ChaChaStream(KEY).add_normal(OTHERS[name](device), 1.0)


def compile_for(capability: int) -> dict[str, tuple[int, str]]:
    """Kernels as they are compiled for an NVIDIA GPU that need not be there: how often, and the assembly."""
    import triton
    from triton.backends.compiler import GPUTarget

    driver = mock.Mock()
    driver.get_current_target.return_value = GPUTarget("cuda", capability, 32)
    driver.get_current_device.return_value = 0
    triton.runtime.driver.set_active(driver)
    compiled: dict[str, list] = {}

    def compile_only(kernel, *arguments, grid, warmup, **options):
        made = run(kernel, *arguments, grid=grid, warmup=True, **options)
        compiled.setdefault(kernel.fn.__name__, []).append(made)

    run, space = triton.JITFunction.run, torch.zeros(4096)
    with mock.patch.object(triton.JITFunction, "run", compile_only):
        for key in (bytes(32), bytes([1, *bytes(31)]), bytes([16, *bytes(31)]), b"\xff" * 32, KEY):
            stream = ChaChaStream(key)
            for start, n in ((0, 1), (1, 16), (16, 5), (8 * FULL, 1000), (1 << 66, 3)):
                stream.add_normal(space[:n], 1.0, start)
                stream.add_normal(space[1 : 1 + n], 0.5, start)
                stream.words(n, start // 8, device="cpu")
    return {name: (len(set(map(id, made))), made[0].asm["ptx"]) for name, made in compiled.items()}


@dataclass(frozen=True)
class Kernels:
    worker: ProcessPoolExecutor
    device: str

    def __call__(self, function, *arguments, **options):
        return self.worker.submit(function, self.device, *arguments, **options).result()


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Kernels]:
    with process(interpret=True) as worker:
        yield Kernels(worker, "cpu")


@pytest.fixture(scope="module", params=["interpreted", *(["compiled"] if torch.cuda.is_available() else [])])
def kernels(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    if request.param == "interpreted":
        yield request.getfixturevalue("interpreted")
    else:
        with process(interpret=False) as worker:
            yield Kernels(worker, "cuda")


# What the values should be.


def key_stream(key: bytes, n_blocks: int, start: int, nonce: bytes = bytes(8)) -> bytes:
    """By `cryptography`, whose counter ends at 2^32 and whose nonce has what lies above."""
    before = min(n_blocks, FULL - start % FULL)
    cipher = Cipher(algorithms.ChaCha20(key, start.to_bytes(8, "little") + nonce), None).encryptor()
    after = key_stream(key, n_blocks - before, start + before, nonce) if n_blocks > before else b""
    return cipher.update(bytes(64 * before)) + after


def normals(n: int, start: int = 0) -> np.ndarray:
    """Box-Muller in float64 on the key stream of KEY: float64[n]."""
    first, skip = divmod(start, 8)
    pairs = np.frombuffer(key_stream(KEY, (skip + n + 7) // 8, first), "<u8").reshape(-1, 2)
    finer = (pairs[:, 1] % np.uint64(2048) + 0.5) * 2.0**-11
    radius = np.sqrt(-2 * np.log((pairs[:, 0] + finer) * 2.0**-64))
    angle = (pairs[:, 1] >> np.uint64(11)) * (2 * np.pi * 2.0**-53)
    return np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1).reshape(-1)[skip : skip + n]


RFC_8439 = [  # section 2.3.2, then appendix A.1: key, counter, nonce, key stream
    (
        KEY.hex(),
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        "00" * 32,
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "00" * 32,
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "00" * 31 + "01",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "00ff" + "00" * 30,
        2,
        "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        "00" * 32,
        0,
        "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


@pytest.mark.parametrize(
    ("key", "counter", "nonce", "expected"),
    RFC_8439,
    ids=["2.3.2", "A.1 #1", "A.1 #2", "A.1 #3", "A.1 #4", "A.1 #5"],
)
def test_blocks_are_those_of_rfc_8439(kernels, key, counter, nonce, expected):
    first, rest = bytes.fromhex(nonce)[:4], bytes.fromhex(nonce)[4:]
    start = int.from_bytes(first, "little") * FULL + counter
    words = kernels(make_words, bytes.fromhex(key), 1, start, rest)
    assert words.astype("<i4").tobytes().hex() == expected


@pytest.mark.parametrize(
    ("seed", "n", "start"),
    [
        (1, 1, 0),
        (2, 300, 7),
        (3, 128, FULL - 1),
        (4, 3, FULL - 2),
        (5, 2, 3 * FULL + 5),
        (6, 2, (1 << 64) - 2),
    ],
)
def test_key_stream_is_that_of_another_implementation(kernels, seed, n, start):
    draw = np.random.default_rng(seed)
    key, nonce = draw.bytes(32), draw.bytes(8)
    assert kernels(make_words, key, n, start, nonce).tobytes() == key_stream(key, n, start, nonce)


@pytest.mark.parametrize("start", [0, 3, PROGRAM - 1, 8 * FULL - 20])
def test_values_are_box_muller_of_the_key_stream(kernels, start):
    made = kernels(make_noise, np.zeros(1300, np.float32), start=start)
    assert abs(made - normals(1300, start)).max() < step_of(1.0)


def test_values_are_normal(kernels):
    from scipy import stats

    n = 8 * WIDE
    blocks = WIDE if kernels.device == "cpu" else 0
    values = kernels(make_noise, np.zeros(n, np.float32), blocks=blocks).astype(np.float64)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert abs(values.mean()) < 5 / n**0.5
    assert abs(values.std() - 1) < 5 / (2 * n) ** 0.5
    assert abs(stats.kurtosis(values)) < 5 * (24 / n) ** 0.5
    for lag in (1, 2, 4, 8, PROGRAM):
        assert abs(np.corrcoef(values[:-lag], values[lag:])[0, 1]) < 5 / n**0.5
    # A tail cut at 3 or 4 standard deviations would show here: n * P(|Z| > 4) is 8.3.
    assert 0 < (abs(values) > 4).sum() < 25


@pytest.mark.parametrize(
    ("word", "even", "odd"),
    [
        (0, (2 * np.log(2.0**76)) ** 0.5, 0.0),
        (0xFFFFFFFF, 0.0, 0.0),
        (1, (2 * np.log(2.0**32 - 1)) ** 0.5, None),
    ],
)
def test_the_tail_is_as_long_as_its_bits_make_it(interpreted, word, even, odd):
    values = interpreted(make_noise_of_word, word)
    assert values[::2] == pytest.approx(even, abs=step_of(1.0))
    assert values[1::2] == pytest.approx(values[1] if odd is None else odd, abs=step_of(1.0))


def test_a_shard_gets_the_noise_that_the_whole_gets_there(kernels):
    whole = kernels(make_noise, np.zeros(2 * PROGRAM + 11, np.float32), start=5)
    for first, n in ((0, 1), (1, 9), (3, PROGRAM), (PROGRAM - 5, 20), (PROGRAM + 3, PROGRAM + 8)):
        shard = kernels(make_noise, np.zeros(n, np.float32), start=5 + first)
        assert (shard == whole[first : first + n]).all()


@pytest.mark.parametrize("start", [0, 1, 7])
@pytest.mark.parametrize("n", [0, 1, 7, 9, PROGRAM - 1, PROGRAM + 1])
def test_nothing_beyond_the_ends_is_touched(kernels, n, start):
    margin = 40
    memory = np.full(n + 2 * margin, 2.0, np.float32)
    made = kernels(make_noise, memory, start=start, margin=margin)
    inside = slice(margin, margin + n)
    assert abs(made[inside] - 2 - normals(n, start)).max(initial=0) < step_of(1.0)
    made[inside] = 2
    assert (made == 2).all()


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1234.5])
def test_noise_has_its_scale_and_the_sum_is_rounded_once(kernels, scale):
    values = np.linspace(-3, 3, 200, dtype=np.float32)
    exact = values + scale * normals(200)
    if scale:
        step = step_of(scale)
        exact = np.rint(exact / step) * step
    made = kernels(make_noise, values, scale)
    assert (abs(made - exact) <= 0.5001 * np.spacing(np.float32(abs(exact)))).all()


@pytest.mark.parametrize("scale", [1e-30, 0.7, 300.0])
def test_values_lie_on_the_grid_of_the_noise(kernels, scale):
    made = kernels(make_noise, np.full(20_000, 0.3 * scale, np.float32), scale).astype(np.float64)
    steps = made / step_of(scale)
    assert (steps == np.rint(steps)).all()
    assert (abs(made) < scale / 100).sum() > 50  # there float32 alone would be far finer


@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors_are_refused(kernels, name):
    with pytest.raises(ValueError, match="contiguous float32"):
        kernels(add_to_other, name)


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (make_words, (bytes(16), 1), "32 bytes"),
        (make_words, (KEY, 1, 0, bytes(12)), "nonce"),
        (make_words, (KEY, 1, -1), "do not exist"),
        (make_words, (KEY, 2, (1 << 64) - 1), "do not exist"),
        (make_noise, (np.zeros(2, np.float32), 1.0, -1), "do not exist"),
        (make_noise, (np.zeros(2, np.float32), 1.0, (1 << 67) - 1), "do not exist"),
    ],
)
def test_what_does_not_exist_is_refused(interpreted, call, arguments, message):
    with pytest.raises(ValueError, match=message):
        interpreted(call, *arguments)


def test_without_triton_the_module_can_be_imported_and_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    spec = importlib.util.find_spec("confide.randomness.chacha_gpu")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    with pytest.raises(InputError, match="needs Triton"):
        fresh.ChaChaStream(KEY)


def test_each_kernel_compiles_once_for_a_gpu(tmp_path: Path):
    """What the interpreter lets pass the compiler may not, and another key must not cost another compilation."""
    with process(interpret=False, TRITON_CACHE_DIR=str(tmp_path)) as worker:
        compiled = worker.submit(compile_for, 90).result()
    assert {name: count for name, (count, _) in compiled.items()} == {"_write_words": 1, "_add_normal": 1}
    assembly = compiled["_add_normal"][1]
    assert assembly.count("shf.l.wrap.b32") >= 320  # rotations, one instruction each
    assert ".param .f64 _add_normal_param_3" in assembly  # the scale
    shift = re.search(r"ld\.param\.b64\s+(%\w+), \[_add_normal_param_4\]", assembly).group(1)
    for sign in ("add", "sub"):  # what rounds to the grid must not cancel
        assert len(re.findall(rf"{sign}\S*\.f64 .*{shift}\b", assembly)) == 8
    assert "cvt.rn.f64.u64" in assembly  # the radius: unsigned, rounded to nearest
    assert "sqrt.rn.f64" in assembly
    assert "lg2.approx" not in assembly
