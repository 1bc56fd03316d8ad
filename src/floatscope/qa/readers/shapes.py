"""The shapes of question answering data, a row each: how a record is recognised, and how it becomes a sample."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from floatscope.qa.readers.fields import (
    Data,
    WrongField,
    answers_of,
    first_of,
    flag_of,
    rows_of,
    some_answers,
    text_of,
    title_of,
)
from floatscope.qa.samples import Document, Sample
from floatscope.registry import Registry

ReadSample = Callable[[Data, str], Sample]


def whole(data: Data) -> Iterable[Data]:
    """A record that is one question."""
    return (data,)


@dataclass(frozen=True)
class Shape:
    """One way in which question answering data is written down."""

    name: str
    summary: str
    matches: Callable[[Data], bool]
    """Does this record look like the shape? Asked of the first records of a file."""
    sample: ReadSample
    """A record and the id to give it become a sample; raises WrongField."""
    questions: Callable[[Data], Iterable[Data]] = whole
    """The records of single questions in a record of the file (a SQuAD article holds many)."""


SHAPES: Registry[Shape] = Registry("dataset shape", {})
"""The last is asked first: a shape stands after those whose looser test its records would pass as well, and so does one
that is added."""


def _shape(
    name: str, summary: str, matches: Callable[[Data], bool], questions: Callable[[Data], Iterable[Data]] = whole
) -> Callable[[ReadSample], ReadSample]:
    """The row of the function that it stands above, which makes samples."""

    def add(sample: ReadSample) -> ReadSample:
        SHAPES.add(name, Shape(name, summary, matches, sample, questions))
        return sample

    return add


def _document(row: Data, text: str, *gold: str) -> Document:
    return Document(title_of(row, "title"), text_of(row, text), flag_of(row, *gold))


def _plain_document(value: Any) -> Document:
    """A bare text is a document without a title."""
    if isinstance(value, str) and value.strip():
        return Document("", value.strip())
    if isinstance(value, dict):
        return _document(value, "text", "gold")
    raise WrongField("an entry of `documents` is neither a text nor an object with a `text`")


@_shape(
    "plain",
    "plain JSONL: question, answers, documents[] of title, text, gold",
    lambda data: ("question" in data or "query" in data) and ("answers" in data or "answer" in data),
)
def _plain_sample(data: Data, id: str) -> Sample:
    documents = data.get("documents") or []
    if not isinstance(documents, list):
        raise WrongField("its field `documents` is not a list")
    metadata = data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise WrongField("its field `metadata` is not an object")
    answers = some_answers(data, "answers", "answer")
    return Sample(id, text_of(data, "question", "query"), answers, tuple(map(_plain_document, documents)), metadata)


@_shape(
    "kilt",
    "KILT (NQ, TriviaQA, HotpotQA, T-REx, zsRE...): input, output[].answer, provenance",
    lambda data: "input" in data and isinstance(data.get("output"), list | dict) and "passage" not in data,
)
def _kilt_sample(data: Data, id: str) -> Sample:
    """KILT points at pages and holds no text: the gold titles are kept, the documents have to be retrieved.

    The input of a slot-filling task ("subject [SEP] relation") stays as it is, as in published figures; its two parts
    stand beside it.
    """
    question = text_of(data, "input")
    outputs = rows_of(data, "output")
    pages = [page for output in outputs for page in rows_of(output, "provenance")]
    titles = tuple(dict.fromkeys(filter(None, (title_of(page, "title") for page in pages))))
    metadata: dict[str, Any] = {"gold_titles": titles} if titles else {}
    subject, separator, relation = question.partition("[SEP]")
    if separator:
        metadata |= {"subject": subject.strip(), "relation": relation.strip()}
    answers = answers_of(outputs)
    if not answers:
        raise WrongField("it has no answer in `output[].answer`")
    return Sample(id, question, answers, (), metadata)


def _is_ms_marco(data: Data) -> bool:
    passages = data.get("passages")
    if isinstance(passages, list) and passages:
        passages = passages[0]
    return isinstance(passages, dict) and "is_selected" in passages


@_shape("ms-marco", "MS MARCO: query, answers, wellFormedAnswers, passages[].is_selected", _is_ms_marco)
def _ms_marco_sample(data: Data, id: str) -> Sample:
    """The published files write "no well-formed answer" as the text "[]", and "no answer" as a phrase."""
    well_formed = data.get("wellFormedAnswers")
    values = [*answers_of(data.get("answers")), *answers_of([] if well_formed == "[]" else well_formed)]
    answers = tuple(dict.fromkeys(value for value in values if value != "No Answer Present."))
    documents = tuple(_document(row, "passage_text", "is_selected") for row in rows_of(data, "passages"))
    metadata: dict[str, Any] = {} if answers else {"answerable": False}
    if kind := title_of(data, "query_type"):
        metadata["type"] = kind
    return Sample(id, text_of(data, "query"), answers, documents, metadata)


TRIVIAQA_TEXTS = ("wiki_context", "WikiContext", "search_context", "SearchContext", "Description", "description")


def _is_triviaqa(data: Data) -> bool:
    answer = first_of(data, "Answer", "answer")
    return isinstance(answer, dict) and ("Aliases" in answer or "aliases" in answer)


@_shape("triviaqa", "TriviaQA: Question, Answer.Value and Answer.Aliases, EntityPages, SearchResults", _is_triviaqa)
def _triviaqa_sample(data: Data, id: str) -> Sample:
    """The published files mostly name evidence files without their text: such entries are no documents."""
    answer = first_of(data, "Answer", "answer")
    if not isinstance(answer, dict):
        raise WrongField("it has no object `Answer` (the test set of TriviaQA cannot be scored)")
    aliases = first_of(answer, "Aliases", "aliases") or []
    accepted = answers_of([first_of(answer, "Value", "value"), *aliases])
    if not accepted:
        raise WrongField("its `Answer` has neither `Value` nor `Aliases`")
    question, documents = text_of(data, "Question", "question"), []
    for row in (*rows_of(data, "EntityPages", "entity_pages"), *rows_of(data, "SearchResults", "search_results")):
        text = first_of(row, *TRIVIAQA_TEXTS)
        if isinstance(text, str) and text.strip():
            documents.append(Document(title_of(row, "Title", "title"), text.strip()))
    return Sample(id, question, accepted, tuple(documents))


def _is_squad(data: Data) -> bool:
    paragraphs = data.get("paragraphs")
    if isinstance(paragraphs, list) and paragraphs:
        return isinstance(paragraphs[0], dict) and "qas" in paragraphs[0]
    return isinstance(data.get("context"), str) and "question" in data and "answers" in data


def _squad_questions(data: Data) -> Iterator[Data]:
    if "paragraphs" not in data:
        yield data
        return
    for paragraph in rows_of(data, "paragraphs"):
        for question in rows_of(paragraph, "qas"):
            yield {**question, "title": data.get("title"), "context": paragraph.get("context")}


@_shape("squad", "SQuAD 1.1 and 2.0: data[].paragraphs[].qas[], or the hub's flat rows", _is_squad, _squad_questions)
def _squad_sample(data: Data, id: str) -> Sample:
    """A question that version 2 calls impossible has no answers, and no gold document either."""
    answers = data.get("answers")
    if answers is None:
        raise WrongField("it has no field `answers` (the hidden test set of SQuAD cannot be scored)")
    accepted = answers_of(first_of(answers, "text") or [] if isinstance(answers, dict) else answers)
    answerable = bool(accepted)
    if not answerable and "is_impossible" in data and not flag_of(data, "is_impossible"):
        raise WrongField("it has no answer although `is_impossible` is false")
    document = Document(title_of(data, "title").replace("_", " "), text_of(data, "context"), gold=answerable)
    return Sample(id, text_of(data, "question"), accepted, (document,), {} if answerable else {"answerable": False})


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


@_shape(
    "hotpotqa",
    "HotpotQA and 2WikiMultiHopQA: question, answer, supporting_facts, context",
    lambda data: "supporting_facts" in data and "context" in data,
)
def _hotpotqa_sample(data: Data, id: str) -> Sample:
    """Gold titles are kept, in order of first mention, since not every setting ships the gold paragraphs."""
    gold_titles = tuple(dict.fromkeys(title for title, _ in _pairs(data, "supporting_facts", "sent_id")))
    documents = []
    for title, sentences in _pairs(data, "context", "sentences"):
        if not isinstance(sentences, list) or not all(isinstance(sentence, str) for sentence in sentences):
            raise WrongField(f"the paragraph {title!r} in `context` is not a list of sentences")
        text = " ".join(sentence.strip() for sentence in sentences if sentence.strip())
        documents.append(Document(title, text, title in gold_titles))
    metadata = {name: data[name] for name in ("type", "level") if isinstance(data.get(name), str)}
    metadata["gold_titles"] = gold_titles
    answers = some_answers(data, "answer")
    return Sample(id, text_of(data, "question"), answers, tuple(documents), metadata)


@_shape(
    "lost-in-the-middle",
    "Lost in the Middle and DPR: question, answers, ctxs[] with isgold or hasanswer",
    lambda data: isinstance(data.get("ctxs"), list) and "question" in data,
)
def _lost_in_the_middle_sample(data: Data, id: str) -> Sample:
    """Where `isgold` is not stated, a context that has the answer counts as gold, as DPR does."""
    documents = tuple(
        _document(row, "text", *(("isgold",) if "isgold" in row else ("hasanswer", "has_answer")))
        for row in rows_of(data, "ctxs")
    )
    return Sample(id, text_of(data, "question"), some_answers(data, "answers", "answer"), documents)


PAPER_QUESTION = ("input", "query", "question")


@_shape(
    "paper",
    "the paper's JSONL: input|query|question, output|answer|answers, passage[].segment",
    lambda data: isinstance(data.get("passage"), list) and any(name in data for name in PAPER_QUESTION),
)
def _paper_sample(data: Data, id: str) -> Sample:
    """Passages are retrieved and nobody marked the gold ones, so none is gold here."""
    documents = tuple(_document(row, "segment") for row in rows_of(data, "passage"))
    return Sample(id, text_of(data, *PAPER_QUESTION), some_answers(data, "output", "answer", "answers"), documents)


LEAST_WORDS = 24
_TEXTS = ("text", "contents", "content", "passage", "body")


def _passages(data: Data) -> Iterable[Data]:
    """A record that holds a text; or the documents of a question in another shape."""
    if any(isinstance(data.get(name), str) for name in ("before", "after", *_TEXTS)):
        return (data,)
    shape = next((shape for shape in reversed(tuple(SHAPES.values())) if shape.matches(data)), None)
    if shape is None:
        raise WrongField(f"it has none of the fields {', '.join(_TEXTS)}, and no documents in a known shape")
    samples = [shape.sample(question, "") for question in shape.questions(data)]
    texts = [document.text for sample in samples for document in sample.documents]
    return [{"text": text} for text in dict.fromkeys(texts)]


@_shape(
    "passage", "text to fill in: before, answer and after; or text, whose middle is the gap", lambda _: False, _passages
)
def _passage_sample(data: Data, id: str) -> Sample:
    """A whole text is cut at its words into three parts alike, of which the second is the gap."""
    if "before" in data or "after" in data:
        before, gap, after = (data.get(name) or "" for name in ("before", "answer", "after"))
        if not all(isinstance(part, str) for part in (before, gap, after)) or not gap.strip():
            raise WrongField("its fields `before`, `answer` and `after` are not texts, or there is no `answer`")
        return Sample(id, "", (gap,), before=before, after=after)
    text = text_of(data, *_TEXTS)
    words = [match.start() for match in re.finditer(r"\S+", text)]
    if len(words) < LEAST_WORDS:
        raise WrongField(f"its text has {len(words)} words, and a passage needs {LEAST_WORDS}")
    start, stop = (words[part * len(words) // 3] for part in (1, 2))
    return Sample(id, "", (text[start:stop],), before=text[:start], after=text[stop:])
