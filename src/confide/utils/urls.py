"""URLs as sources: which they are, and that they hold no secret."""

import re

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_LOCAL = re.compile(r"(file|local)://", re.IGNORECASE)
_PASSWORD = re.compile(r"://[^/@]*:(?!\d+(/|$))[^@]*@")
# Elsewhere a user names a container or a login, and digits behind a host are its port.
_USER = re.compile(r"https?://([^/]*@|[^/@]*:\d+/.*@)", re.IGNORECASE)
_QUERY = re.compile(r"[?&#;][\w.~%-]+=")
_QUERY_OF_HTTP = re.compile(r"https?://.*[?#]", re.IGNORECASE)

SECRET = (
    "a URL may hold no password, key or query, which would be written into files: set them where the file system "
    "looks for them (as AWS_ACCESS_KEY_ID), and give the plain URL"
)


def has_scheme(source: str) -> bool:
    """Tell whether a source begins as a URL does."""
    return _SCHEME.match(source) is not None


def is_url(source: str) -> bool:
    """Tell whether a source is the URL of something that is not reached by a path."""
    return has_scheme(source) and not _LOCAL.match(source)


def holds_secret(source: str) -> bool:
    """Tell whether a URL holds what may be a password, a key or a signature."""
    patterns = (_PASSWORD, _USER, _QUERY, _QUERY_OF_HTTP)
    return has_scheme(source) and any(pattern.search(source) for pattern in patterns)


def path_of(source: str) -> str:
    """Return the path that a `file://` URL stands for; any other source as it is."""
    found = _LOCAL.match(source)
    return source if found is None else source[found.end() :]
