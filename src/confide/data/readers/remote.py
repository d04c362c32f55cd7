"""Files behind URLs (s3://, gs://, https:// ...), by fsspec: what a name stands for, its content, its version."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from confide.utils.errors import InputError
from confide.utils.urls import SECRET, has_scheme, holds_secret

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "http": "aiohttp requests",
    "https": "aiohttp requests",
    "sftp": "paramiko",
    "oci": "ocifs",
}
# What the file systems call the version of an object. Times of access are not among them.
_VERSIONS = (
    "etag",
    "md5hash",
    "content-md5",
    "content_md5",
    "checksum",
    "crc32c",
    "generation",
    "blob_id",
    "lfs",
    "versionid",
    "mtime",
    "modified",
    "last-modified",
    "last_modified",
    "lastmodified",
    "modificationtime",
    "updated",
    "created",
)
_BUFFER = 1 << 16


class RemoteFile:
    """A file behind a URL. Readers use it as they use a `Path`; it may be sent to other processes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = PurePosixPath(url.partition("://")[2])
        self.name, self.suffix, self.suffixes = self._path.name, self._path.suffix, self._path.suffixes

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemoteFile({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self.url,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteFile) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the content. Raises OSError, whatever the file system raises."""
        try:
            system, path = _system(self.url)
            return cast(IO[bytes], io.BufferedReader(_Content(system.open(path, "rb")), _BUFFER))
        except (InputError, OSError):
            raise
        except Exception as error:
            raise OSError(_reason(error)) from None

    @cached_property
    def size(self) -> int:
        """Bytes, as they are stored; 0 if the file system does not say."""
        return int(self._info().get("size") or 0)

    def stamp(self) -> list[int]:
        """Return the size, and a number that changes when the content does. It is not remembered."""
        info = self._info()
        known = {name: str(value) for name, value in info.items() if name.lower() in _VERSIONS and value}
        if not known:
            with told(self.url):
                system, path = _system(self.url)
                known = {"ukey": str(system.ukey(path))}
        digest = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=7).digest()
        return [int(info.get("size") or 0), int.from_bytes(digest, "big")]

    @property
    def is_shared(self) -> bool:
        """False for what only this process sees."""
        return not self.url.lower().startswith("memory://")

    def _info(self) -> Mapping[str, Any]:
        with told(self.url):
            system, path = _system(self.url)
            system.invalidate_cache()
            return cast(Mapping[str, Any], system.info(path))


File = Path | RemoteFile


class _Content(io.RawIOBase):
    """The bytes of a file of fsspec, whose errors are of any type."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._file.read(len(buffer))
        except OSError:
            raise
        except Exception as error:
            raise OSError(_reason(error)) from None
        buffer[: len(found)] = found
        return len(found)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def remote_files(url: str) -> list[RemoteFile]:
    """Return the files that a URL or a pattern stands for, sorted.

    Raises:
        InputError: there is none, it is a folder, it cannot be reached, the file system needs a package that is not
            installed.
    """
    with told(url):
        system, path = _system(url)
        system.invalidate_cache()
        if has_magic(path):
            found = system.glob(path, detail=True)
            names = sorted(name for name, info in found.items() if info.get("type") == "file")
            if not names:
                raise InputError(f"{url}: no file matches the pattern.")
            return [RemoteFile(_with_scheme(url, name)) for name in names]
        if system.info(path).get("type") == "directory":
            raise InputError(
                f"{url}: is a folder; give a pattern of its files, as {url.rstrip('/')}/*.jsonl."
            )
    return [RemoteFile(url)]


def check_url(url: str) -> None:
    """Raise InputError for a URL that holds a secret, or names one file system within another."""
    if holds_secret(url):
        raise InputError(f"data: {SECRET}.")
    if has_scheme(url) and "::" in url:
        raise InputError(f"{url}: names one file system within another; give a URL of one.")


def _with_scheme(url: str, name: str) -> str:
    """Return the URL of a file that a file system listed, which leaves the scheme out of most names."""
    return name if has_scheme(name) else f"{url.partition('://')[0]}://{name.lstrip('/')}"


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it. Raises InputError if there is none."""
    from fsspec.core import url_to_fs

    scheme = url.partition("://")[0].lower()
    try:
        return cast(tuple[Any, str], url_to_fs(url))
    except ImportError:
        package = _PACKAGES.get(scheme)
        what = f"pip install {package}" if package else f"install the package that gives fsspec {scheme}://"
        raise InputError(f"{url}: needs a package that is not installed: {what}") from None
    except ValueError as error:
        if "not known" in str(error):
            raise InputError(f"{url}: no file system is known for {scheme}://.") from None
        raise


@contextmanager
def told(url: str) -> Iterator[None]:
    """Turn errors of a file system, which are of any type, into an InputError about the URL."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{url}: no such file.") from None
    except Exception as error:
        raise InputError(f"{url}: cannot be reached ({_reason(error)}).") from None


def _reason(error: Exception) -> str:
    """Describe an error without the query of a URL, which may hold a signature."""
    said = re.sub(r"[?&]\S+", "", str(error).strip().partition("\n")[0])[:200].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
