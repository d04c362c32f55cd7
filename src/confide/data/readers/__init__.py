"""Text from any source, as a stream of documents with owners: `read`.

`records` and `documents` are its two halves, so that cleaning (`enron`, `quotes`) fits in between. `duplicates`
reports text that crosses units.
"""

from confide.data.readers.documents import Counts, Document, Record, documents
from confide.data.readers.readers import read, records

__all__ = ["Counts", "Document", "Record", "documents", "read", "records"]
