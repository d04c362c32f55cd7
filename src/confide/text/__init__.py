"""Text from wherever it lies, as a stream of documents with owners: `read`.

`records` and `documents` are its two halves, so that cleaning (`confide.text.enron`, `confide.text.quotes`)
fits in between; `confide.text.duplicates` reports what crosses units.
"""

from confide.text.documents import Counts, Document, Record, documents
from confide.text.readers import FORMATS, read, records

__all__ = ["FORMATS", "Counts", "Document", "Record", "documents", "read", "records"]
