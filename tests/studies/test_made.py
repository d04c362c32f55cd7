"""Folders that are made in one go."""

import pytest
from studies.runner.made import made


def test_who_comes_second_keeps_what_the_first_one_made(tmp_path):
    folder = tmp_path / "texts" / "posts"

    def make(building):
        made(folder, lambda place: (place / "part").write_text("first"))  # another process is faster
        (building / "part").write_text("second")

    assert made(folder, make) == folder
    assert (folder / "part").read_text() == "first"
    assert [each.name for each in folder.parent.iterdir()] == ["posts"]


def test_nothing_is_left_of_what_failed(tmp_path):
    def make(building):
        (building / "part").write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        made(tmp_path / "posts", make)
    assert not list(tmp_path.iterdir())
