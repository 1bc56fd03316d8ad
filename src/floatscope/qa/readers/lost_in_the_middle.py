"""Lost in the Middle: `question`, `answers`, `ctxs`, gold where `isgold`. DPR's retriever output too."""

from floatscope.qa.readers.fields import Data, first_of, flag_of, rows_of, some_answers, text_of, title_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample


def _matches(data: Data) -> bool:
    return isinstance(data.get("ctxs"), list) and "question" in data


def _document(context: Data) -> Document:
    """Where `isgold` is not stated, a context that has the answer counts as gold, as DPR does."""
    gold = flag_of(context, "isgold") if "isgold" in context else flag_of(context, "hasanswer", "has_answer")
    return Document(title_of(context, "title"), text_of(context, "text"), gold)


def _sample(data: Data, id: str) -> Sample:
    answers = some_answers(first_of(data, "answers", "answer"), ("answers",))
    return Sample(id, text_of(data, "question"), answers, tuple(map(_document, rows_of(data, "ctxs"))))


SHAPE = Shape(
    name="lost-in-the-middle",
    summary="Lost in the Middle and DPR: question, answers, ctxs[] with isgold or hasanswer",
    matches=_matches,
    sample=_sample,
)
