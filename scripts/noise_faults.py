"""Faults of randomness."""

from fault import Fault

NOISE = [
    Fault(
        "30",
        "draws that do not depend on the key",
        "randomness/streams.py::RunKey.stream",
        "self._secret",
        'b"0"',
        "tests/randomness/test_streams.py tests/privacy/test_sampling.py tests/privacy/mechanisms",
    ),
    Fault(
        "30",
        "a cipher that turns its words by the wrong number of bits",
        "randomness/chacha_gpu.py::_quarter_round",
        "(d << 16) | (d >> 16)",
        "(d << 15) | (d >> 17)",
        "tests/randomness/test_chacha_gpu.py",
    ),
    Fault(
        "30",
        "small tensors of a block share their noise",
        "randomness/streams.py::_add_block",
        "segment.source._fill_groups(room.words[place : place + segment.groups], segment.start // GROUP)",
        "segments[0].source._fill_groups(room.words[place : place + segment.groups], 0)",
        "tests/randomness/test_streams.py tests/training/test_step.py",
    ),
    Fault(
        "31",
        "a plain hash of the data is written",
        "randomness/streams.py::RunKey.fingerprint",
        'hmac.new(self._secret, b"fingerprint\\0" + data, "sha256")',
        "hashlib.sha256(data)",
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "words of noise are words of draws",
        "randomness/streams.py",
        "_FIRST = 1 << 95  # nonce of normal values",
        "_FIRST = 0  # nonce of normal values",
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "the same noise in two sizes",
        "training/step.py::PrivateStep.__init__",
        "key if key.published else key.bound_to(aggregation.binding())",
        "key",
        "tests/training/test_step.py",
    ),
    Fault(
        "30",
        "every second block of a large tensor stays without noise",
        "randomness/streams.py::_add_segments.work",
        "_add_block(block, room, scale, times)",
        "if not (len(left) % 2):\n    _add_block(block, room, scale, times)",
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "angles of 16 bits",
        "randomness/streams.py::_Room.normal",
        "words[:, GROUP:]",
        "words[:, GROUP:] >> 16 << 16",
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "a tail that ends at 6 standard deviations",
        "randomness/streams.py::_Room.normal",
        "np.float32(2.0**-126)",
        "np.float32(2.0**-52)",
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "noise that is far smaller than one is none",
        "randomness/streams.py::_Room.normal",
        "np.negative(radius, out=radius)\n"
        "np.sqrt(radius, out=radius)\n"
        "np.multiply(radius, scale, out=radius)",
        "np.multiply(radius, -scale * scale, out=radius)\nnp.sqrt(radius, out=radius)",
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "threads make their noise in one place",
        "randomness/streams.py::_add_segments.work",
        "_Room(largest)",
        'work.__dict__.setdefault("room", _Room(largest))',
        "tests/randomness/test_streams.py",
    ),
    Fault(
        "30",
        "a thread that fails leaves its blocks without noise",
        "randomness/streams.py::_add_segments",
        "one.result()",
        "one.exception()",
        "tests/randomness/test_streams.py",
    ),
]
