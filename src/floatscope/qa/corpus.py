"""Corpora to retrieve from: documents read from a file or gathered from samples, and their content hash."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from floatscope.errors import UserError
from floatscope.files import read_text
from floatscope.qa.readers.fields import WrongField, text_of, title_of
from floatscope.qa.readers.records import WrongRecord, read_records
from floatscope.qa.samples import Document, Sample


def read_corpus(path: str | Path) -> tuple[Document, ...]:
    """Documents of a JSON or JSON Lines file of {title, text}, gzipped or not, or of a folder of .txt and .md files.

    The title may be missing; that of a text file is as `titled_text` says. A wrong record is an error with its place: a
    corpus with holes would change every retrieval in silence.
    """
    file = Path(path)
    if os.path.isdir(file):
        found = [one for one in sorted(file.rglob("*")) if one.suffix in (".txt", ".md") and one.is_file()]
        if not found:
            raise UserError(f"The corpus folder {path} holds no .txt or .md file.")
        return tuple(titled_text(one, one.stem) for one in found)
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


def titled_text(path: Path, otherwise: str = "") -> Document:
    """The document of a text file: a first line that ends in a colon is its title, `otherwise` where there is none."""
    text = read_text(path).strip()
    if not text:
        raise UserError(f"the document {path} is empty")
    title, _, rest = text.partition("\n")
    if title.endswith(":") and rest.strip():
        return Document(title[:-1].strip(), rest.strip())
    return Document(otherwise, text)


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
