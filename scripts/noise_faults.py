"""Faults of randomness: where each goes in, and the tests that must notice."""

from fault import Fault

NOISE = [
    Fault(
        "30",
        "draws that do not depend on the key",
        "noise.py",
        "hmac.digest(self._secret, name.encode()",
        'hmac.digest(b"0", name.encode()',
        "tests/test_noise.py tests/test_sampling.py tests/mechanisms",
    ),
    Fault(
        "30",
        "a cipher that turns its words by the wrong number of bits",
        "chacha.py",
        "d = (d << 16) | (d >> 16)",
        "d = (d << 15) | (d >> 17)",
        "tests/test_chacha.py",
    ),
    Fault(
        "30",
        "small tensors of a block share their noise",
        "noise.py",
        "segment.source._fill_groups(room.words[place : place + segment.groups], segment.start // GROUP)",
        "segments[0].source._fill_groups(room.words[place : place + segment.groups], 0)",
        "tests/test_noise.py tests/test_training.py",
    ),
    Fault(
        "31",
        "a plain hash of the data is written",
        "noise.py",
        'hmac.new(self._secret, b"fingerprint\\0" + data, "sha256").hexdigest()',
        "hashlib.sha256(data).hexdigest()",
        "tests/test_noise.py",
    ),
    Fault(
        "30",
        "words of noise are words of draws",
        "noise.py",
        "_FIRST = 1 << 95",
        "_FIRST = 0",
        "tests/test_noise.py",
    ),
    Fault(
        "30",
        "the same noise in two sizes",
        "training.py",
        "key if key.published else key.bound_to(repr(combine).encode())",
        "key",
        "tests/test_training.py",
    ),
    Fault(
        "30",
        "every second block of a large tensor stays without noise",
        "noise.py",
        "            _add_block(block, room, scale, times)",
        "            if not (len(left) % 2):\n                _add_block(block, room, scale, times)",
        "tests/test_noise.py",
    ),
    Fault(
        "30",
        "angles of 16 bits",
        "noise.py",
        'np.copyto(angle, words[:, GROUP:], casting="unsafe")',
        'np.copyto(angle, words[:, GROUP:] >> 16 << 16, casting="unsafe")',
        "tests/test_noise.py",
    ),
    Fault(
        "30",
        "a tail that ends at 6 standard deviations",
        "noise.py",
        "np.add(radius, np.float32(2.0**-65), out=radius)",
        "np.add(radius, np.float32(2.0**-26), out=radius)",
        "tests/test_noise.py",
    ),
]
