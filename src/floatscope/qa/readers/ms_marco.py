"""MS MARCO: passages with `is_selected`, free and well-formed answers. By row or by column."""

from typing import Any

from floatscope.qa.readers.fields import Data, answers_of, flag_of, rows_of, text_of, title_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample

NO_ANSWER = "No Answer Present."


def _matches(data: Data) -> bool:
    passages = data.get("passages")
    if isinstance(passages, list) and passages:
        passages = passages[0]
    return isinstance(passages, dict) and "is_selected" in passages


def _sample(data: Data, id: str) -> Sample:
    """The published files write "no well-formed answer" as the text "[]", and "no answer" as a phrase."""
    well_formed = data.get("wellFormedAnswers")
    values = [*answers_of(data.get("answers")), *answers_of([] if well_formed == "[]" else well_formed)]
    answers = tuple(dict.fromkeys(value for value in values if value != NO_ANSWER))
    documents = tuple(
        Document(title_of(row, "title"), text_of(row, "passage_text"), flag_of(row, "is_selected"))
        for row in rows_of(data, "passages")
    )
    metadata: dict[str, Any] = {} if answers else {"answerable": False}
    if kind := title_of(data, "query_type"):
        metadata["type"] = kind
    return Sample(id, text_of(data, "query"), answers, documents, metadata)


SHAPE = Shape(
    name="ms-marco",
    summary="MS MARCO: query, answers, wellFormedAnswers, passages[].is_selected",
    matches=_matches,
    sample=_sample,
)
