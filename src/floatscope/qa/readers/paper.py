"""The paper's evaluation files: a query, its answers, and retrieved passages with a `segment` each."""

from floatscope.qa.readers.fields import Data, first_of, rows_of, some_answers, text_of, title_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample

QUESTION = ("input", "query", "question")
ANSWERS = ("output", "answer", "answers")


def _matches(data: Data) -> bool:
    return isinstance(data.get("passage"), list) and any(name in data for name in QUESTION)


def _sample(data: Data, id: str) -> Sample:
    """Passages are retrieved and nobody marked the gold ones, so none is gold here."""
    passages = rows_of(data, "passage")
    documents = tuple(Document(title_of(row, "title"), text_of(row, "segment")) for row in passages)
    return Sample(id, text_of(data, *QUESTION), some_answers(first_of(data, *ANSWERS), ANSWERS), documents)


SHAPE = Shape(
    name="paper",
    summary="the paper's JSONL: input|query|question, output|answer|answers, passage[].segment",
    matches=_matches,
    sample=_sample,
)
