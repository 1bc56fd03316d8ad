"""Corpora to retrieve from: documents read from a file or gathered from samples, and their content hash."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from floatscope.errors import UserError
from floatscope.qa.readers.fields import WrongField, text_of, title_of
from floatscope.qa.readers.records import WrongRecord, read_records
from floatscope.qa.samples import Document, Sample


def read_corpus(path: str | Path) -> tuple[Document, ...]:
    """Documents of a JSON or JSON Lines file of {title, text}, gzipped or not; the title may be missing.

    A wrong record is an error with its place: a corpus with holes would change every retrieval in silence.
    """
    file = Path(path)
    if not os.path.isfile(file):
        raise UserError(f"There is no corpus file {path}.")
    documents = []
    for record in read_records(file):
        if isinstance(record, WrongRecord):
            raise UserError(str(record))
        try:
            documents.append(Document(title_of(record.data, "title"), text_of(record.data, "text", "contents")))
        except WrongField as error:
            raise UserError(f"{file.name}, {record.place}: {error}.") from error
    if not documents:
        raise UserError(f"{file.name} holds no document.")
    return tuple(documents)


def documents_of(samples: Iterable[Sample]) -> tuple[Document, ...]:
    """The samples' own documents as a corpus, each once, in order; nothing is gold outside of its sample."""
    documents = (document for sample in samples for document in sample.documents)
    return tuple(dict.fromkeys(Document(document.title, document.text) for document in documents))


def content_hash(documents: Iterable[Document], *settings: str) -> str:
    """A hash of what the documents say, in order, and of settings; where they came from plays no part."""
    digest = hashlib.sha256()
    for part in (*settings, *(text for document in documents for text in (document.title, document.text))):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]
