"""Templates: what is written comes out to the character, and mistakes in a user's file are sentences."""

import pytest

from floatscope.errors import UserError
from floatscope.qa.samples import Document
from floatscope.qa.templates import Piece, parse_template, read_template

DOCUMENTS = (Document("Alden", "A port.", gold=True), Document("", "Nothing."))


def text_of(template, documents=DOCUMENTS, placement=None):
    return "".join(piece.text for piece in template.pieces("Where?", documents, placement))


def test_the_default_template_is_the_one_the_twins_were_trained_on():
    template = read_template("default")
    expected = "Document 1: Alden. A port.\nDocument 2: Nothing.\nQuestion: Where?\nAnswer:"
    assert text_of(template) == text_of(template, placement="after") == expected
    before = "Question: Where?\nDocument 1: Alden. A port.\nDocument 2: Nothing.\nAnswer:"
    assert text_of(template, placement="before") == before
    assert text_of(template, ()) == "Question: Where?\nAnswer:"


def test_pieces_say_where_each_stretch_is_from():
    template = parse_template("Read {number}\n".replace("{number}", "this:") + "{documents}#{number} {title}|{text}\n"
                              "{/documents}{{Q}} {question}", "own")  # fmt: skip
    assert template.pieces("Where?", DOCUMENTS) == [
        Piece("Read this:\n#1 ", "scaffold"),
        Piece("Alden", "doc 1", "title", gold=True),
        Piece("|", "scaffold"),
        Piece("A port.", "doc 1", "text", gold=True),
        Piece("\n#2 |", "scaffold"),
        Piece("Nothing.", "doc 2", "text"),
        Piece("\n{Q} ", "scaffold"),
        Piece("Where?", "query"),
    ]


def test_tags_alone_on_a_line_take_it_with_them_and_others_do_not():
    alone = parse_template("Top\n  {documents} \n- {text}\n{otherwise}\nnone\n{/documents}\nQ {question}\n\n", "own")
    assert text_of(alone) == "Top\n- A port.\n- Nothing.\nQ Where?"
    assert text_of(alone, ()) == "Top\nnone\nQ Where?"
    within = parse_template("{documents}<{text}>{/documents}\nQ {question}", "own")
    assert text_of(within) == "<A port.><Nothing.>\nQ Where?"


def test_fields_inside_a_document_or_question_are_text():
    template = read_template("default")
    pieces = template.pieces("{question} {text}?", [Document("{title}", "{number} {{ }")])
    assert "".join(piece.text for piece in pieces) == (
        "Document 1: {title}. {number} {{ }\nQuestion: {question} {text}?\nAnswer:"
    )


@pytest.mark.parametrize(
    ("text", "placements"),
    [
        ("{documents}{text}{/documents}{question}", ("after",)),
        ("{question}{documents}{text}{/documents}", ("before",)),
        ("{question}{documents}{text}{/documents}{question}", ("after",)),
        ("{before}{question}{/before}{documents}{text}{/documents}{after}{question}{/after}", ("after", "before")),
    ],
)
def test_where_the_question_can_stand(text, placements):
    assert parse_template(text, "own").placements == placements


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "own.txt"
    path.write_bytes("\ufeff{documents}\r\n{text}\r\n{/documents}\r\n¿{question}\r\n".encode())
    assert text_of(read_template(str(path))) == "A port.\nNothing.\n¿Where?"
    path.write_bytes(b"\xff\xfe{question}")
    with pytest.raises(UserError, match="UTF-8"):
        read_template(str(path))
    with pytest.raises(UserError, match="no template 'papre'"):
        read_template("papre")


@pytest.mark.parametrize("family", ["llada", "dream", "causal"])
def test_the_papers_prompts_have_the_papers_parts_in_their_order(family):
    """Rules, passages with a number and no title, examples for all but LLaDA, the question, the cue."""
    template = read_template("paper", family)
    text = text_of(template)
    cue = "Short Answer:" if family == "llada" else "Answer:"
    assert text.endswith(f"Question: Where?\n\n{cue}" if family == "llada" else f"Question: Where?\n{cue}")
    assert "Context:\nPassage 1:\nA port.\n\nPassage 2:\nNothing.\n\n" in text
    assert "Alden" not in text
    rules = [
        line for line in text.partition("Context:")[0].splitlines() if line[:2] in ("- ", *(f"{n}." for n in "123456"))
    ]
    assert len(rules) == 6
    assert text.count("Example ") == (0 if family == "llada" else 3)
    if family != "llada":
        assert text.index("Passage 2:\nNothing.") < text.index("Example 1") < text.index("Question: Where?")
    assert text_of(template, ()).count("Passage 1:\n") == 1  # the paper shows a passage that says there is none
    early = text_of(template, placement="before")
    assert early.index("Question: Where?") < early.index("A port.")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{documents}{text}{/documents}", "no {question}"),
        ("{question}", "0 places for a document's {text}"),
        ("{documents}{text}{text}{/documents}{question}", "2 places"),
        ("{documents}{text}{question}", "{question} inside {documents}"),
        ("{text}{question}", "outside of {documents}"),
        ("{documents}{text}{question", "belongs to no field"),
        ("{documents}{text}", "does not close it"),
        ("{documents}{text}{/before}", "{/before} inside {documents}"),
        ("{otherwise}{question}", "{otherwise} where no section is open"),
        ("{documents}{texts}{/documents}{question}", "{texts} that does not exist"),
        ("{documents}{text}{/documents}{before}x{/before}{after}{question}{/after}", "no {question} inside {before}"),
    ],
)
def test_mistakes_are_sentences(text, match):
    with pytest.raises(UserError, match=f"template own .*{match}".replace("{", r"\{").replace("}", r"\}")):
        parse_template(text, "own")
