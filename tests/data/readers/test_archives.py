"""An archive that was cut short or altered is refused, wherever the fault is; what is whole is read whole."""

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from confide.data.readers import records
from confide.data.readers.opening import How, content_of
from confide.utils.errors import InputError

PACKED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
END = 2 * tarfile.BLOCKSIZE  # two blocks of zeros


def message(number: int) -> bytes:
    return f"From: ann{number}@x.org\nTo: bob@x.org\nSubject: lunch\n\nshall we, number {number}\n".encode()


def archive(messages: int, long_names: bool = False) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for number in range(messages):
            name = f"inbox/{'long ' * 40 if long_names else ''}{number}.txt"
            info = tarfile.TarInfo(name)
            info.size = len(message(number))
            tar.addfile(info, io.BytesIO(message(number)))
    return stream.getvalue()


def senders(path) -> list[str]:
    return [record.fields["from"] for record in records(path)]


def check_cuts(path: Path, whole: bytes, every: int) -> None:
    """Check that an archive of two mails is refused when cut next to a block's edge, and at every n-th byte."""
    members = len(whole.rstrip(b"\0"))
    end = -(-members // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE + END
    assert not whole[members:].strip(b"\0")
    edges = (edge + beside for edge in range(0, end + 1, tarfile.BLOCKSIZE) for beside in (-1, 0, 1))
    for length in sorted({cut for cut in edges if 0 <= cut < end} | set(range(0, end, every))):
        path.write_bytes(whole[:length])
        with pytest.raises(
            InputError, match=r"mails\.tar: (not a readable tar archive|is empty|the archive)"
        ):
            senders(path)
    for length in (end, end + 1, len(whole)):  # what follows is padding
        path.write_bytes(whole[:length])
        assert senders(path) == ["ann0@x.org", "ann1@x.org"]


@pytest.mark.parametrize("long_names", [False, True])
def test_a_cut_archive_is_refused(tmp_path, long_names):
    check_cuts(tmp_path / "mails.tar", archive(2, long_names), every=61)


@pytest.mark.parametrize("long_names", [False, True])
def test_every_cut_of_an_archive_is_refused(tmp_path, long_names):
    check_cuts(tmp_path / "mails.tar", archive(2, long_names), every=1)


@pytest.mark.parametrize("packed", [".gz", ".xz", ".bz2"])
def test_every_cut_of_a_compressed_archive_is_refused(tmp_path, packed):
    path = tmp_path / f"mails.tar{packed}"
    whole = PACKED[packed](archive(3))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"mails\.tar"):
            senders(path)
    path.write_bytes(whole)
    assert len(senders(path)) == 3


@pytest.mark.parametrize("packed", PACKED)
def test_what_is_put_after_the_end_is_not_passed_over(tmp_path, packed):
    path = tmp_path / f"mails.tar{packed}"
    path.write_bytes(PACKED[packed](archive(2) + archive(3)))
    with pytest.raises(InputError, match="data follow its end"):
        senders(path)


def test_a_damaged_header_in_the_middle_is_no_end(tmp_path):
    path = tmp_path / "mails.tar"
    whole = bytearray(archive(3))
    whole[2 * tarfile.BLOCKSIZE] ^= 1  # the name in the second header, which its checksum covers
    path.write_bytes(whole)
    with pytest.raises(InputError, match="not a readable tar archive"):
        senders(path)


@pytest.mark.parametrize(("packed", "junk"), [(".xz", b"junk!"), (".bz2", b"junk!"), (".gz", b"junk!")])
def test_what_follows_a_compressed_stream_is_another_or_a_fault(tmp_path, packed, junk):
    path = tmp_path / f"text.txt{packed}"
    two = PACKED[packed](b"one ") + PACKED[packed](b"two")
    path.write_bytes(two)
    assert content_of(path, How()) == b"one two"
    path.write_bytes(two + junk)
    with pytest.raises(InputError, match=r"text\.txt.*damaged"):
        content_of(path, How())


def test_an_xz_file_may_be_padded(tmp_path):
    path = tmp_path / "text.txt.xz"
    path.write_bytes(lzma.compress(b"one ") + bytes(8) + lzma.compress(b"two") + bytes(4))
    assert content_of(path, How()) == b"one two"
