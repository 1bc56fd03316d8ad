"""SQuAD 1.1 and 2.0: articles of paragraphs of questions, or the flat rows that the hub makes of them."""

from collections.abc import Iterator

from floatscope.qa.readers.fields import (
    Data,
    WrongField,
    answers_of,
    first_of,
    flag_of,
    rows_of,
    text_of,
    title_of,
)
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample


def _matches(data: Data) -> bool:
    paragraphs = data.get("paragraphs")
    if isinstance(paragraphs, list) and paragraphs:
        return isinstance(paragraphs[0], dict) and "qas" in paragraphs[0]
    return isinstance(data.get("context"), str) and "question" in data and "answers" in data


def _questions(data: Data) -> Iterator[Data]:
    if "paragraphs" not in data:
        yield data
        return
    for paragraph in rows_of(data, "paragraphs"):
        for question in rows_of(paragraph, "qas"):
            yield {**question, "title": data.get("title"), "context": paragraph.get("context")}


def _sample(data: Data, id: str) -> Sample:
    """A question that version 2 calls impossible has no answers, and no gold document either."""
    answers = data.get("answers")
    if answers is None:
        raise WrongField("it has no field `answers` (the hidden test set of SQuAD cannot be scored)")
    accepted = answers_of(first_of(answers, "text") or [] if isinstance(answers, dict) else answers)
    answerable = bool(accepted)
    if not answerable and "is_impossible" in data and not flag_of(data, "is_impossible"):
        raise WrongField("it has no answer although `is_impossible` is false")
    title = title_of(data, "title").replace("_", " ")
    document = Document(title, text_of(data, "context"), gold=answerable)
    metadata = {} if answerable else {"answerable": False}
    return Sample(id, text_of(data, "question"), accepted, (document,), metadata)


SHAPE = Shape(
    name="squad",
    summary="SQuAD 1.1 and 2.0: data[].paragraphs[].qas[], or the hub's flat rows",
    matches=_matches,
    sample=_sample,
    questions=_questions,
)
