"""TriviaQA: the answer's value and aliases; pages and search results are documents where they have a text."""

from collections.abc import Iterator

from floatscope.qa.readers.fields import Data, WrongField, answers_of, first_of, rows_of, text_of, title_of
from floatscope.qa.readers.shape import Shape
from floatscope.qa.samples import Document, Sample

TEXTS = ("wiki_context", "WikiContext", "search_context", "SearchContext", "Description", "description")


def _matches(data: Data) -> bool:
    answer = first_of(data, "Answer", "answer")
    return isinstance(answer, dict) and ("Aliases" in answer or "aliases" in answer)


def _documents(data: Data) -> Iterator[Document]:
    """The published files mostly name evidence files without their text: such entries are no documents."""
    for names in (("EntityPages", "entity_pages"), ("SearchResults", "search_results")):
        for row in rows_of(data, *names):
            text = first_of(row, *TEXTS)
            if isinstance(text, str) and text.strip():
                yield Document(title_of(row, "Title", "title"), text.strip())


def _sample(data: Data, id: str) -> Sample:
    answer = first_of(data, "Answer", "answer")
    if not isinstance(answer, dict):
        raise WrongField("it has no object `Answer` (the test set of TriviaQA cannot be scored)")
    aliases = first_of(answer, "Aliases", "aliases") or []
    accepted = answers_of([first_of(answer, "Value", "value"), *aliases])
    if not accepted:
        raise WrongField("its `Answer` has neither `Value` nor `Aliases`")
    return Sample(id, text_of(data, "Question", "question"), accepted, tuple(_documents(data)))


SHAPE = Shape(
    name="triviaqa",
    summary="TriviaQA: Question, Answer.Value and Answer.Aliases, EntityPages, SearchResults",
    matches=_matches,
    sample=_sample,
)
