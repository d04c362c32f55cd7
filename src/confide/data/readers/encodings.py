"""The encoding of a text and the delimiter of a table: detected from the content, and reported."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator

from confide.data.readers.opening import How, lines_of, pieces_of, sample_of
from confide.data.readers.parts import Piece
from confide.data.readers.remote import File
from confide.utils.errors import InputError

HEAD = 1 << 18  # bytes that are examined
_LOOKED_AT = 200  # records that a delimiter must fit
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_FEW = 3  # bytes beyond ASCII: fewer may as well be damage
# Within a word of a Western language there is no sign but an apostrophe, a hyphen or a middle dot, and no raised
# figure; and what looks Icelandic is, as a rule, Turkish in another encoding.
_STRANGE = re.compile(
    r"[^\W\d_](?:[^\w\s\x00-\x7f’‘‐­·´–—…]|[¹²³¼½¾])[^\W\d_]|\b[¹²³¼½¾][^\W\d_]|[ðþýÐÞÝ¤¦¬\x80-\x9f]"
)
# Letters beyond ASCII of the languages that are written in Windows-1252. In another encoding the same bytes are other
# letters, and words of Czech, Polish or Hungarian look like words, but not like those of one language.
_LETTERS = tuple(
    map(
        frozenset,
        (
            "àâæçéèêëîïôœùûüÿ",  # French
            "äöüßéàè",  # German
            "áéíóúüñçªº",  # Spanish
            "áàâãçéêíóôõúüªº",  # Portuguese
            "àáèéìíîòóùúªº",  # Italian
            "àçèéíïòóúü",  # Catalan
            "éëïöüáèêóíúçà",  # Dutch
            "åäöéæøòôèàü",  # the Nordic languages
            "äöõüšž",  # Estonian
        ),
    )
)
_SENTENCES = re.compile(r'[\n\t".!?;]+')
_STRAY = 0.05  # of all sentences that may hold a word of another language
_MESS = 0.5  # of charset-normalizer's measure, above which it is no text: prose among numbers has 0.2, Cyrillic 1.0


def check_encoding(name: str | None) -> None:
    """Raise InputError for an unknown `data.encoding`."""
    if name is None:
        return
    try:
        known = codecs.lookup(name)
        known.incrementaldecoder().decode(b"")
        is_text = isinstance("".encode(name), bytes) and getattr(known, "_is_text_encoding", True)
    except (LookupError, TypeError, ValueError):
        is_text = False
    if not is_text:
        raise InputError(f"data.encoding: {name!r} is not an encoding; try utf-8, cp1252 or utf-16.")


def check_delimiter(delimiter: str | None) -> None:
    """Raise InputError for a `data.delimiter` that cannot separate fields."""
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '\r\n"\0'):
        raise InputError(
            f'data.delimiter: {delimiter!r} is not one character that may stand between fields, as ";" or "\\t".'
        )


def encoding_of(head: bytes) -> str:
    """Return the encoding of a text that begins like this; UTF-8, valid or not, if nothing else is sure."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if b"\0" in head:
        return _wide(head)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return _western(head)
    return "utf-8"


def _wide(head: bytes) -> str:
    """Detect UTF-16 without its mark, which has a NUL in every other byte of a mostly ASCII text."""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    for name, nulls, others in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if nulls > len(head) / 8 and nulls > 20 * others:
            text = head[: len(head) // 2 * 2].decode(name, "ignore")
            if all(character.isprintable() or character in "\t\r\n" for character in text):
                return name
    return "utf-8"


def _western(head: bytes) -> str:
    """Detect Windows-1252: the bytes make good sense in it, and are not UTF-8 with a fault."""
    from charset_normalizer import from_bytes

    if sum(map(head.count, range(128, 256))) < _FEW:
        return "utf-8"
    # In a long head, bytes beyond ASCII may be rare: only the words around them are examined.
    words = b" ".join(re.findall(rb"[^\s]*[\x80-\xff][^\s]*", head))
    if re.search(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}", words):
        return "utf-8"
    try:
        text = head.decode("cp1252")
    except UnicodeDecodeError:
        return "utf-8"
    found = from_bytes(head, cp_isolation=["cp1252"], threshold=_MESS).best()
    return "cp1252" if found is not None and _reads_well(text) else "utf-8"


def _reads_well(text: str) -> bool:
    """Tell whether nearly every sentence could be of one Western language."""
    sentences = [sentence for sentence in _SENTENCES.split(text) if not sentence.isascii()]
    odd = 0
    for sentence in sentences:
        letters = {letter for letter in sentence.lower() if letter.isalpha() and not letter.isascii()}
        odd += bool(_STRANGE.search(sentence)) or not any(letters <= known for known in _LETTERS)
    return odd <= _STRAY * len(sentences)


def encoding_for(where: File | str, how: How, head: bytes | None = None) -> str:
    """Return the stated encoding, or the one that the head, by default of the file, shows, which is then reported."""
    if how.encoding is not None:
        return how.encoding
    if head is None:
        assert not isinstance(where, str)
        head = sample_of(where, HEAD)
    found = encoding_of(head)
    if found != "utf-8":
        how.counts.note(str(where), f"read as {found}, as its bytes say (data.encoding states it)")
    return found


def decoded(content: bytes, where: str, how: How) -> str:
    """Decode a whole text. Raises InputError, with the line, for bytes that are not of its encoding."""
    encoding = encoding_for(where, how, content[:HEAD])
    try:
        return _checked(content.decode(_reading(encoding)), where, encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where} line {line}: {not_valid(encoding)}.") from None
    except UnicodeError:
        raise InputError(f"{where}: {not_valid(encoding)}.") from None


def not_valid(encoding: str) -> str:
    """Return the error text for bytes that are not of an encoding."""
    if codecs.lookup(encoding).name == "utf-8":
        return "not valid UTF-8; save the file as UTF-8, or state data.encoding"
    return f"not valid {encoding}; state another data.encoding, or save the file as UTF-8"


def _reading(encoding: str) -> str:
    return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding


def _checked(text: str, where: str, encoding: str) -> str:
    # In UTF-8 the replacement character may be the author's; a decoder of another encoding writes it for damage.
    if "\ufffd" in text and not codecs.lookup(encoding).name.startswith("utf-8"):
        raise InputError(f"{where}: {not_valid(encoding)}.")
    return text


def is_utf8(path: File, how: How) -> bool:
    """Tell whether the file is read as UTF-8, without a remark."""
    return codecs.lookup(how.encoding or encoding_of(sample_of(path, HEAD))).name == "utf-8"


def text_lines(path: File, how: How, piece: Piece | None = None) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1 and lines, without a byte order mark. Raises InputError with the line number.

    A piece is of a file in UTF-8, see `is_utf8`.
    """
    encoding = "utf-8" if piece is not None and piece.start is not None else encoding_for(path, how)
    if codecs.lookup(encoding).name != "utf-8":
        yield from enumerate(_split(text_pieces(path, how, encoding), path, how), 1)
        return
    for number, line in lines_of(path, how, piece):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} line {number}: not valid UTF-8 (byte {error.start + 1} of the line); "
                "save the file as UTF-8, or state data.encoding."
            ) from None


def text_pieces(path: File, how: How, encoding: str | None = None) -> Iterator[str]:
    """Yield the text in pieces of a fixed size, since an array may stand on one endless line."""
    encoding = encoding_for(path, how) if encoding is None else encoding
    decoder = codecs.getincrementaldecoder(_reading(encoding))()
    read, line = 0, 1
    try:
        for piece in pieces_of(path):
            text = _checked(decoder.decode(piece), f"{path} line {line}", encoding)
            read += len(piece)
            line += text.count("\n")
            yield text
        yield decoder.decode(b"", final=True)
    except UnicodeError:
        raise InputError(f"{path} line {line} or later: {not_valid(encoding)}.") from None


def _split(pieces: Iterable[str], path: File, how: How) -> Iterator[str]:
    begun: list[str] = []
    length, number = 0, 1
    for piece in pieces:
        *lines, last = piece.split("\n")
        for line in lines:
            yield "".join((*begun, line, "\n"))
            begun, length, number = [], 0, number + 1
        begun.append(last)
        length += len(last)
        if length > how.largest:
            raise how.too_large(f"{path} line {number}")
    if length:
        yield "".join(begun)


def delimiter_for(path: File, how: How) -> str:
    """Return the stated delimiter of a CSV, or the one that its first records show, which is then reported."""
    if how.delimiter is not None:
        return how.delimiter
    head = sample_of(path, HEAD)
    encoding = how.encoding or encoding_of(head)
    try:
        text = codecs.getincrementaldecoder(_reading(encoding))().decode(head)
    except UnicodeError:
        return ","  # reading the file reports the fault
    whole = len(head) < HEAD
    fitting = [delimiter for delimiter in _DELIMITERS if _fits(text, delimiter, whole)]
    if not fitting or "," in fitting:
        return ","
    if len(fitting) > 1:
        kinds = " or ".join(_DELIMITERS[each] for each in fitting)
        raise InputError(f"{path}: between the fields are {kinds}; state which with data.delimiter.")
    what = f"read with {_DELIMITERS[fitting[0]]} between its fields (data.delimiter states it)"
    how.counts.note(str(path), what)
    return fitting[0]


def _fits(text: str, delimiter: str, whole: bool) -> bool:
    """Tell whether the first records have as many fields as the header, and more than one."""
    fields = 0
    rows = csv.reader(io.StringIO(text, newline="\n"), delimiter=delimiter, strict=True)
    end = text.count("\n") - 1
    try:
        for number, row in enumerate(rows):
            if number == _LOOKED_AT or (not whole and rows.line_num >= end):
                break
            if not row:
                continue
            fields = fields or len(row)
            if len(row) != fields:
                return False
    except csv.Error:
        return False
    return fields > 1
