"""HotpotQA, and 2WikiMultiHopQA, which has its shape: paragraphs named by `supporting_facts` are gold."""

from typing import Any

from floatscope.qa.readers.fields import Data, WrongField, rows_of, some_answers, text_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample


def _matches(data: Data) -> bool:
    return "supporting_facts" in data and "context" in data


def _pairs(data: Data, name: str, second: str) -> list[tuple[str, Any]]:
    """[[title, x], ...] as published, or the hub's columns {"title": [...], second: [...]}."""
    value: Any = data.get(name)
    if isinstance(value, dict):
        value = [(row.get("title"), row.get(second)) for row in rows_of(data, name)]
    if not isinstance(value, list) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    ):
        raise WrongField(f"its field `{name}` is not a list of pairs that start with a title")
    return [(pair[0], pair[1]) for pair in value]


def _document(title: str, sentences: Any, gold: bool) -> Document:
    if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
        raise WrongField(f"the paragraph {title!r} in `context` is not a list of sentences")
    return Document(title, " ".join(sentence.strip() for sentence in sentences if sentence.strip()), gold)


def _sample(data: Data, id: str) -> Sample:
    """Gold titles are kept, in order of first mention, since not every setting ships the gold paragraphs."""
    gold_titles = tuple(dict.fromkeys(title for title, _ in _pairs(data, "supporting_facts", "sent_id")))
    paragraphs = _pairs(data, "context", "sentences")
    documents = tuple(_document(title, sentences, title in gold_titles) for title, sentences in paragraphs)
    metadata = {name: data[name] for name in ("type", "level") if isinstance(data.get(name), str)}
    answers = some_answers(data.get("answer"), ("answer",))
    return Sample(id, text_of(data, "question"), answers, documents, {**metadata, "gold_titles": gold_titles})


SHAPE = Shape(
    name="hotpotqa",
    summary="HotpotQA and 2WikiMultiHopQA: question, answer, supporting_facts, context",
    matches=_matches,
    sample=_sample,
)
