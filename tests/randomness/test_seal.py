"""A file of another run, step or use, or with one changed bit, is not taken for what the run wrote."""

import numpy as np
import pytest

from confide.randomness.seal import Broken, Seal
from confide.randomness.streams import RunKey

KEY = RunKey(bytes(range(32)))
OTHER = RunKey(bytes(32))


def test_what_was_sealed_is_read_back(tmp_path):
    seal = Seal(KEY)
    seal.write_json(tmp_path / "a.json", "facts", {"b": [1, 2.5, None], "a": {"é": float("inf")}})
    assert seal.read_json(tmp_path / "a.json", "facts") == {"b": [1, 2.5, None], "a": {"é": float("inf")}}
    array = np.arange(6.0).reshape(2, 3)
    seal.write_array(tmp_path / "a.npy", "numbers", array)
    np.testing.assert_array_equal(seal.read_array(tmp_path / "a.npy", "numbers"), array)


@pytest.mark.parametrize(("key", "use"), [(OTHER, "facts"), (KEY, "others"), (KEY.bound_to(b"x"), "facts")])
def test_another_key_or_use_does_not_open_it(tmp_path, key, use):
    Seal(KEY).write_json(tmp_path / "a.json", "facts", {"a": 1})
    Seal(KEY).write_array(tmp_path / "a.npy", "facts", np.zeros(3))
    with pytest.raises(Broken):
        Seal(key).read_json(tmp_path / "a.json", use)
    with pytest.raises(Broken):
        Seal(key).read_array(tmp_path / "a.npy", use)


def test_no_single_bit_may_change(tmp_path):
    seal, path = Seal(KEY), tmp_path / "a.npy"
    seal.write_array(path, "numbers", np.arange(4.0))
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Broken):
            seal.read_array(path, "numbers")
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Broken):
            seal.read_array(path, "numbers")


@pytest.mark.parametrize(
    "text",
    ["", "3", "[]", "null", "{}", '{"a": 1}', '{"a": 1, "seal": 3}', '{"a": 1, "seal": "é"}', "[" * 5000],
)
def test_anything_else_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(Broken):
        Seal(KEY).read_json(tmp_path / "a.json", "facts")


def test_words_of_a_use_do_not_run_together():
    """("ab", "c") and ("a", "bc") are different uses, and so is a use that goes on in the data."""
    seals = [
        Seal(KEY).over("ab", "c"),
        Seal(KEY).over("a", "bc"),
        Seal(KEY).over("ab"),
        Seal(KEY).over("abc"),
    ]
    assert len({seal.digest() for seal in seals}) == 4
    first, second = Seal(KEY).over("a"), Seal(KEY).over("a", "b")
    first.update((1).to_bytes(8, "big") + b"b")
    assert first.digest() != second.digest()
