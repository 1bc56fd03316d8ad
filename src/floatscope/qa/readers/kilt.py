"""KILT: `input` and `output[].answer` with provenance; T-REx and zsRE ask by "subject [SEP] relation"."""

from typing import Any

from floatscope.qa.readers.fields import Data, rows_of, some_answers, text_of, title_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Sample

SEPARATOR = "[SEP]"


def _matches(data: Data) -> bool:
    output = data.get("output")
    return "input" in data and isinstance(output, (list, dict)) and "passage" not in data


def _sample(data: Data, id: str) -> Sample:
    """KILT points at pages and holds no text: the gold titles are kept, the documents have to be retrieved.

    The input of a slot-filling task stays as it is, as in published figures; its two parts stand beside it.
    """
    question = text_of(data, "input")
    outputs = rows_of(data, "output")
    pages = [page for output in outputs for page in rows_of(output, "provenance")]
    titles = tuple(dict.fromkeys(filter(None, (title_of(page, "title") for page in pages))))
    metadata: dict[str, Any] = {"gold_titles": titles} if titles else {}
    subject, separator, relation = question.partition(SEPARATOR)
    if separator:
        metadata |= {"subject": subject.strip(), "relation": relation.strip()}
    return Sample(id, question, some_answers(outputs, ("output[].answer",)), (), metadata)


SHAPE = Shape(
    name="kilt",
    summary="KILT (NQ, TriviaQA, HotpotQA, T-REx, zsRE...): input, output[].answer, provenance",
    matches=_matches,
    sample=_sample,
)
