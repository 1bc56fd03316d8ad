"""Prompts: regions partition the tokens, and each token lies where its characters lie, for every kind of tokenizer."""

import unicodedata
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floatscope.canvas import Region, positions
from floatscope.errors import UserError
from floatscope.qa.prompts import build_canvas, build_prompt, cut_text, shares, surroundings
from floatscope.qa.samples import Document
from floatscope.qa.templates import parse_template, read_template
from floatscope.qa.world.vocabulary import make_tokenizer
from tests.qa.tokenizers_made import AROUND, TOKENIZERS

WILD = [
    "a",
    "B",
    " ",
    "  ",
    "é",
    "e\u0301",
    ".",
    ":",
    "?",
    "\n",
    "12",
    "👩‍🚀",
    "🏽",
    "שלום",
    "مرحبا",
    "\u200d",
    "{text}",
]
WILD += ["<s>", "</s>", "<|im_end|>", "<|mdm_mask|>", "[SEP]", "[CLS]", "<eos>", "<mask>", "Document 1:", "\nAnswer:"]
TEXT = st.lists(st.sampled_from(WILD), max_size=12).map("".join)
DOCUMENTS = st.lists(st.builds(Document, TEXT, TEXT, st.booleans()), max_size=4)
QUESTION = TEXT.filter(str.strip)


def written_out(name, question, documents, before):
    """The default template by hand: (text, label, is gold text) for each stretch, chat markup included."""
    ask = [("Question: ", "scaffold", False), (question, "query", False), ("\n", "scaffold", False)]
    pieces = list(ask) if before else []
    for number, document in enumerate(documents, 1):
        pieces.append((f"Document {number}: ", "scaffold", False))
        if document.title:
            pieces.append((f"{document.title}. ", f"doc {number}", False))
        pieces += [(document.text, f"doc {number}", document.gold), ("\n", "scaffold", False)]
    pieces += [*([] if before else ask), ("Answer:", "scaffold", False)]
    if name == "chatml":
        lead, trail = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
        pieces = [(lead, "scaffold", False), *pieces, (trail, "scaffold", False)]
    if name == "trimming":
        pieces = [("<s>[INST] ", "scaffold", False), *pieces, (" [/INST]", "scaffold", False)]
    return pieces


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(documents=DOCUMENTS, question=QUESTION, before=st.booleans())
@settings(max_examples=30, deadline=None)
def test_each_token_has_the_label_that_most_of_its_characters_have(name, documents, question, before):
    """An independent account: for every character its stretch; ties go to the later stretch."""
    tokenizer = TOKENIZERS[name]
    pieces = written_out(name, question, documents, before)
    owner = [index for index, (text, _, _) in enumerate(pieces) for _ in text]
    prompt = build_prompt(tokenizer, question, documents, ["12", "a b"], placement="before" if before else "after")
    check_partition(tokenizer, prompt)
    assert prompt.cut == (0,) * len(documents)
    assert prompt.text == "".join(text for text, _, _ in pieces)
    lead, trail = AROUND[name]
    ids = prompt.ids[len(lead) : len(prompt.ids) - len(trail)]
    assert tokenizer.convert_ids_to_tokens(prompt.ids.tolist())[: len(lead)] == lead
    assert tokenizer.convert_ids_to_tokens(prompt.ids.tolist())[len(lead) + len(ids) :] == trail
    labels = [region.label for region in prompt.regions for _ in range(len(region))]
    assert labels[: len(lead)] == ["bos"] * len(lead)
    assert labels[len(labels) - len(trail) :] == ["scaffold"] * len(trail)

    evidence = set(prompt.marks["evidence"] - len(lead))
    answered = set(prompt.marks["gold_answer"] - len(lead))
    right = right_characters(prompt.text, [pieces[index][2] for index in owner], ["12", "a b"])
    spans = token_spans(tokenizer, prompt.text, ids)
    for token, (start, stop) in enumerate(spans):
        counts = Counter(owner[start:stop])
        if not counts:
            continue
        best = max(counts, key=lambda piece: (counts[piece], piece))
        is_bos = name == "trimming" and token == 0
        assert labels[len(lead) + token] == ("bos" if is_bos else pieces[best][1])
        assert (token in evidence) == pieces[best][2]
        assert (token in answered) == (token in evidence and any(right[start:stop]))


def right_characters(text, gold, answers):
    """For every character: is it part of an answer that stands in gold text with no letter or digit beside it?"""
    right = [False] * len(text)
    for answer in answers:
        for start in range(len(text) - len(answer) + 1):
            span = range(start, start + len(answer))
            beside = [c for c in (start - 1, start + len(answer)) if 0 <= c < len(text) and gold[c]]
            free = not any(text[c].isalnum() or text[c] == "_" for c in beside)
            if free and text[start : start + len(answer)].lower() == answer and all(gold[c] for c in span):
                for c in span:
                    right[c] = True
    return right


def check_partition(tokenizer, prompt):
    """Regions follow one another, and no word of a document or question is a special token."""
    edges = [0, *(region.stop for region in prompt.regions)]
    assert [region.start for region in prompt.regions] == edges[:-1]
    assert edges[-1] == len(prompt.ids)
    assert all(len(region) > 0 for region in prompt.regions)
    assert all(a.label != b.label for a, b in zip(prompt.regions, prompt.regions[1:], strict=False))
    special = (set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)) - {tokenizer.unk_token_id}
    for region in prompt.regions:
        if region.label not in ("bos", "scaffold", "answer"):
            assert not special & set(prompt.ids[region.start : region.stop].tolist())


def token_spans(tokenizer, text, ids):
    """Character spans of the tokens that are run: the tokenizer's own, but where it met a special token in a document
    and the prompt spells it out, whose characters are shared out over the tokens in its place."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    spans, place = [], 0
    for number, (start, stop) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if place < len(ids) and ids[place] == number:
            spans.append((start, stop))
            place += 1
            continue
        assert text[start:stop] in tokenizer.get_added_vocab()
        plain = tokenizer(
            text[start:stop], add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
        )
        assert ids[place : place + len(plain["input_ids"])].tolist() == plain["input_ids"]
        spans += [(start + a, start + b) for a, b in plain["offset_mapping"]]
        place += len(plain["input_ids"])
    assert place == len(ids)
    return spans


def test_byte_level_prompts_decode_to_their_text_whatever_stands_in_them():
    documents = [Document("<s>", "e\u0301 👩‍🚀 שלום <|mdm_mask|> </s><|im_end|>", gold=True), Document("", "")]
    prompt = build_prompt(TOKENIZERS["bpe"], "مرحبا <s>?", documents)
    assert TOKENIZERS["bpe"].decode(prompt.ids[1:]) == prompt.text
    assert "doc 2" not in {region.label for region in prompt.regions}  # an empty document has no token
    text = TOKENIZERS["bpe"].decode(prompt.ids[prompt.marks["evidence"]])
    assert text.strip() == documents[0].text


def test_regions_and_marks_of_a_prompt_read_back_as_the_expected_words():
    tokenizer = make_tokenizer()
    documents = [
        Document("Mara Voss", "Mara Voss was born in Port Alden. Many visitors ask about it."),
        Document("Orbis Labs", "Orbis Labs is based in West Marsh.", gold=True),
        Document("", "Little else is on record."),
    ]
    prompt = build_prompt(tokenizer, "Where is Orbis Labs based?", documents, ["west marsh"])

    def words(label):
        return tokenizer.convert_ids_to_tokens(prompt.ids[positions(prompt.regions, label)].tolist())

    assert words("bos") == ["<bos>"]
    assert words("query") == ["Where", "is", "Orbis", "Labs", "based", "?"]
    assert words("doc 2") == "Orbis Labs . Orbis Labs is based in West Marsh .".split()
    assert words("doc 3") == "Little else is on record .".split()
    assert words("scaffold")[:3] == ["Document", "1", ":"]
    assert words("scaffold")[-3:] == ["\n", "Answer", ":"]
    evidence = tokenizer.convert_ids_to_tokens(prompt.ids[prompt.marks["evidence"]].tolist())
    assert evidence == "Orbis Labs is based in West Marsh .".split()
    assert tokenizer.convert_ids_to_tokens(prompt.ids[prompt.marks["gold_answer"]].tolist()) == ["West", "Marsh"]


def test_answers_match_at_word_edges_only_and_in_gold_text_only():
    documents = [Document("Art", "Art and party.", gold=True), Document("", "Art again.")]
    prompt = build_prompt(TOKENIZERS["bpe"], "What?", documents, ["art", ""])
    offsets = TOKENIZERS["bpe"](prompt.text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    marked = {range(*offsets[i - 1]) for i in prompt.marks["gold_answer"]}
    start = prompt.text.index("Art and")
    characters = {c for span in marked for c in span}
    assert set(range(start, start + 3)) <= characters <= set(range(start - 1, start + 3))


def test_a_prompt_without_documents_is_the_question_alone():
    prompt = build_prompt(make_tokenizer(), "Who wrote The Silver River?", [])
    assert prompt.text == "Question: Who wrote The Silver River?\nAnswer:"
    assert {region.label for region in prompt.regions} == {"bos", "scaffold", "query"}
    assert prompt.marks["evidence"].size == prompt.marks["gold_answer"].size == 0
    assert prompt.ids.dtype == np.int64


def test_raw_leaves_the_chat_template_aside():
    prompt = build_prompt(TOKENIZERS["chatml"], "Who?", [], raw=True)
    assert np.array_equal(prompt.ids, build_prompt(TOKENIZERS["bpe"], "Who?", []).ids)


@pytest.mark.parametrize("name", ["chatml", "trimming"])
def test_a_chat_prompt_has_the_ids_that_the_tokenizer_itself_gives(name):
    tokenizer = TOKENIZERS[name]
    documents = [Document("A", "It was born.", gold=True)]
    content = "Document 1: A. It was born.\nQuestion: Who, where?\nAnswer:"
    messages = [{"role": "user", "content": content}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]
    prompt = build_prompt(tokenizer, "Who, where?", documents)
    assert prompt.ids.tolist() == expected


def test_bos_comes_once_where_the_template_has_its_own():
    own = parse_template("<s>{documents}{text}{/documents}{question}", "own")
    prompt = build_prompt(TOKENIZERS["bpe"], "Who?", [Document("", "It.")], template=own)
    assert (prompt.ids == TOKENIZERS["bpe"].bos_token_id).sum() == 1
    assert (prompt.regions[0].label, len(prompt.regions[0])) == ("bos", 1)


@pytest.mark.slow
@given(documents=st.lists(st.builds(Document, TEXT, TEXT), min_size=1, max_size=5), less=st.integers(1, 60))
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=15, deadline=None)
def test_documents_are_cut_to_the_room_there_is_and_never_the_question(name, documents, less):
    tokenizer = TOKENIZERS[name]
    whole = build_prompt(tokenizer, "Who was it?", documents)
    least = len(build_prompt(tokenizer, "Who was it?", [Document(d.title, "") for d in documents]).ids)
    room = len(whole.ids) - less
    if room < least:
        with pytest.raises(UserError, match="too long even without"):
            build_prompt(tokenizer, "Who was it?", documents, room=room)
        return
    prompt = build_prompt(tokenizer, "Who was it?", documents, room=room)
    assert len(prompt.ids) <= room
    assert sum(prompt.cut) > 0
    assert "Who was it?" in prompt.text
    for number, document in enumerate(documents):
        if prompt.cut[number] == 0 and document.text.strip():
            assert document.text.strip() in prompt.text


def test_a_document_that_is_cut_says_so_even_if_what_is_left_takes_as_many_tokens():
    """The last letter goes, and the shorter text has one more token than the part of the longer one that is kept."""
    documents = [Document("", "a\u0645\u0631\u062d\u0628\u0627"), Document("", "<|im_end|><|im_end|>")]
    whole = build_prompt(TOKENIZERS["bpe"], "Who was it?", documents)
    prompt = build_prompt(TOKENIZERS["bpe"], "Who was it?", documents, room=len(whole.ids) - 10)
    assert documents[0].text not in prompt.text and prompt.cut[0] > 0


def test_a_token_that_a_document_shares_with_the_line_s_end_is_not_left_out():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    letters = {text: number for number, text in enumerate(["?", "a", "b", "\n", "ab", "ab\n"])}
    shared = Tokenizer(models.BPE(vocab=letters, merges=[("a", "b"), ("ab", "\n")], unk_token="?"))
    prompt = build_prompt(PreTrainedTokenizerFast(tokenizer_object=shared), "Who?", [Document("", "ab")])
    assert letters["ab\n"] in prompt.ids and prompt.cut == (0,)


def test_the_longest_documents_are_cut_first_and_to_one_size():
    tokenizer = make_tokenizer()
    long, middle, short = ("a " * size for size in (30, 20, 5))
    documents = [Document("", middle), Document("", long), Document("", short)]
    whole = build_prompt(tokenizer, "Who?", documents)

    def sizes(prompt):
        return [len(positions(prompt.regions, f"doc {number}")) for number in (1, 2, 3)]

    assert sizes(whole) == [20, 30, 5]
    prompt = build_prompt(tokenizer, "Who?", documents, room=len(whole.ids) - 7)
    assert (sizes(prompt), prompt.cut) == ([20, 23, 5], (0, 7, 0))
    prompt = build_prompt(tokenizer, "Who?", documents, room=len(whole.ids) - 23)
    assert (sizes(prompt), prompt.cut) == ([14, 13, 5], (6, 17, 0))
    assert prompt.text.startswith(f"Document 1: {'a ' * 14}".strip())
    roomy = build_prompt(tokenizer, "Who?", documents, room=len(whole.ids))
    assert np.array_equal(roomy.ids, whole.ids)


def test_an_answer_that_was_cut_off_is_no_longer_marked():
    documents = [Document("", "It was said, and then said again, in Port Alden.", gold=True)]
    whole = build_prompt(make_tokenizer(), "Where?", documents, ["Port Alden"])
    prompt = build_prompt(make_tokenizer(), "Where?", documents, ["Port Alden"], room=len(whole.ids) - 3)
    assert len(whole.marks["gold_answer"]) == 2
    assert prompt.cut == (3,)
    assert len(prompt.marks["gold_answer"]) == 0
    assert len(prompt.marks["evidence"]) == len(whole.marks["evidence"]) - 3


def test_a_canvas_is_a_prompt_and_its_answer_slots():
    prompt = build_prompt(make_tokenizer(), "Who?", [])
    canvas = prompt.with_slots(8)
    assert canvas.regions == (*prompt.regions, Region("answer", len(prompt.ids), len(prompt.ids) + 8))
    assert canvas.slots.tolist() == list(range(len(prompt.ids), len(prompt.ids) + 8))


def test_mistakes_are_sentences():
    with pytest.raises(UserError, match="question is empty"):
        build_prompt(make_tokenizer(), "  \n", [])
    with pytest.raises(UserError, match="room for 4 tokens"):
        build_prompt(make_tokenizer(), "Who was it?", [], room=5)
    changing = TOKENIZERS["chatml"].__class__(tokenizer_object=TOKENIZERS["chatml"].backend_tokenizer)
    changing.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(UserError, match="changes the text"):
        build_prompt(changing, "Who?", [])
    changing.chat_template = "{{ raise_exception('no user here') }}"
    with pytest.raises(UserError, match="no user here"):
        build_prompt(changing, "Who?", [])
    once = parse_template("{question}{documents}{text}{/documents}", "once")
    with pytest.raises(UserError, match="before the documents only"):
        build_prompt(make_tokenizer(), "Who?", [], template=once, placement="after")

    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="offsets"):
        build_prompt(Slow(), "Who?", [])


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_papers_prompts_label_only_the_documents_and_the_question(family):
    documents = [Document("T", "First text.", gold=True), Document("", "Second text.")]
    template = read_template("paper", family)
    for placement in ("before", "after"):
        prompt = build_prompt(TOKENIZERS["bpe"], "Who, where?", documents, template=template, placement=placement)
        read = {
            label: TOKENIZERS["bpe"].decode(prompt.ids[positions(prompt.regions, label)]).strip()
            for label in ("query", "doc 1", "doc 2")
        }
        assert read == {"query": "Who, where?", "doc 1": "First text.", "doc 2": "Second text."}


@given(st.lists(st.integers(0, 30), max_size=6), st.integers(0, 120))
@example([4, 5, 5], 13)  # what is left over goes to one that was cut, not to one that is just as long as the level
def test_shares_are_those_of_taking_from_the_longest_one_by_one(sizes, room):
    left = list(sizes)
    while sum(left) > room:
        longest = max(left)
        last = max(place for place, size in enumerate(left) if size == longest)
        left[last] -= 1
    assert shares(sizes, room) == left


@given(st.lists(st.sampled_from(["e\u0301", "👩‍🚀", "👍🏽", "a", " ", "ก็", "שָׁ"]), max_size=8), st.integers(0, 20))
def test_a_cut_never_parts_a_character_from_its_marks(characters, stop):
    text = "".join(characters)
    cut = cut_text(text, stop)
    assert text.startswith(cut)
    assert len(cut) <= stop
    assert cut == cut.rstrip()
    whole = ["".join(characters[:count]).rstrip() for count in range(len(characters) + 1)]
    assert cut in whole
    assert not any(unicodedata.category(character).startswith("M") for character in cut[:1])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_sentences_are_runs_of_tokens_that_say_them(name):
    tokenizer = TOKENIZERS[name]
    documents = [Document("Title", "Ada fell. Bob rose! Then e.g. he sat.\n(Cy left.) Last"), Document("", "One only")]
    prompt = build_prompt(tokenizer, "Who fell?", documents, raw=True)
    said = {"doc 1": ["Ada fell.", "Bob rose!", "Then e.g. he sat.", "(Cy left.)", "Last"], "doc 2": ["One only"]}
    wanted = [(label, text) for label, texts in said.items() for text in texts]
    assert len(prompt.sentences) == len(wanted)
    for span, (label, text) in zip(prompt.sentences, wanted, strict=True):
        assert span.label == label
        told = tokenizer.decode(prompt.ids[span.start : span.stop])
        letters = [c for c in unicodedata.normalize("NFKC", told).lower() if c.isalnum()]
        assert letters == [c for c in text.lower() if c.isalnum()] or "[UNK]" in told or "<unk>" in told


def test_a_blank_between_two_sentences_ends_the_first():
    documents = [Document("", "Ada fell. Bob rose!  \nCy left.", gold=True)]
    prompt = build_prompt(TOKENIZERS["bpe"], "Who fell?", documents, raw=True)
    said = [TOKENIZERS["bpe"].decode(prompt.ids[span.start : span.stop]) for span in prompt.sentences]
    assert said == ["Ada fell. ", "Bob rose!  \n", "Cy left."]


def test_a_canvas_has_its_slots_between_two_texts():
    tokenizer = make_tokenizer()
    words = [token for token in tokenizer.get_vocab() if token.isalpha()][:3]
    ids = tokenizer.convert_tokens_to_ids(words)
    bos = tokenizer.bos_token_id
    middle = build_canvas(tokenizer, " ".join(words[:2]), 3, words[2])
    assert middle.ids.tolist() == [bos, *ids[:2], 0, 0, 0, ids[2]] and middle.slots.tolist() == [3, 4, 5]
    assert [(r.label, r.start, r.stop) for r in middle.regions] == [
        ("bos", 0, 1), ("query", 1, 3), ("answer", 3, 6), ("query", 6, 7),
    ]  # fmt: skip
    assert {name: found.tolist() for name, found in middle.marks.items()} == {"before": [1, 2], "after": [6]}
    assert middle.answer is None
    left = build_canvas(None, [], 2, ids)
    assert left.ids.tolist() == [0, 0, *ids] and left.slots.tolist() == [0, 1]
    right = build_canvas(tokenizer, [bos, *ids], ids[:2])
    assert right.ids.tolist() == [bos, *ids, 0, 0] and right.slots.tolist() == [4, 5]
    assert right.answer.tolist() == ids[:2] and right.regions[0].label == "bos"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((None, "text", 2), "has no tokenizer beside its weights"),
        ((None, [5], 0), "at least one answer slot"),
        ((make_tokenizer(), "Who", 0), "at least one answer slot"),
        ((make_tokenizer(), "Who", [5, 6]), "of texts or of token ids, not of both"),
        ((make_tokenizer(), [5], "Who"), "of texts or of token ids, not of both"),
        ((make_tokenizer(), "Who", ""), "The text that is to stand in the slots is empty"),
    ],
)
def test_a_canvas_that_cannot_be_is_a_sentence(given, sentence):
    with pytest.raises(UserError, match=sentence):
        build_canvas(*given)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(before=TEXT, said=TEXT.filter(str.strip), after=TEXT)
@settings(max_examples=30, deadline=None)
def test_a_text_in_the_slots_is_tokenised_with_those_around_it(name, before, said, after):
    """The tokens are those of the whole text; the slots are those with most of their characters in the middle."""
    tokenizer = TOKENIZERS[name]
    text = before + said + after
    try:
        canvas = build_canvas(tokenizer, before, said, after)
    except UserError as error:
        assert "no token of its own" in str(error)
        return
    whole = canvas.ids.copy()
    whole[canvas.slots] = canvas.answer
    lead, trail = surroundings(tokenizer)
    spans = token_spans(tokenizer, text, whole[len(lead) : len(whole) - len(trail)])
    for place, (start, stop) in enumerate(spans, len(lead)):
        inside = len(range(max(start, len(before)), min(stop, len(before + said))))
        left, right = len(range(start, min(stop, len(before)))), len(range(max(start, len(before + said)), stop))
        if stop > start:
            is_slot = inside >= left and inside > right
            assert (place in canvas.slots) == is_slot


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_stands_at_the_edges_of_the_gap(name):
    """Neither side is tokenised as if the other followed, and the text after the gap not as if a text began there."""
    tokenizer = TOKENIZERS[name]
    special = next(token.content for token in tokenizer.added_tokens_decoder.values() if token.special)

    def tokens(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    canvas = build_canvas(tokenizer, "Port Al", 2, "den is in it.")
    own = canvas.ids.tolist()
    assert [own[place] for place in canvas.marks["before"]] == tokens("Port Al")
    assert [own[place] for place in canvas.marks["after"]] == tokens(f"{special}den is in it.")[1:]
    assert canvas.slots.tolist() == [canvas.marks["before"][-1] + 1, canvas.marks["before"][-1] + 2]


def test_a_blank_before_the_slots_is_left_to_a_tokenizer_that_writes_it_into_the_word_that_follows():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    glued = Tokenizer(models.BPE())
    glued.pre_tokenizer, glued.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    glued.train_from_iterator(["a ant in a oak"] * 9, trainers.BpeTrainer(special_tokens=["<s>", "<m>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=glued, mask_token="<m>")
    with_blank, without = (build_canvas(tokenizer, text, 2, " oak") for text in ("in a ", "in a"))
    assert with_blank.ids.tolist() == without.ids.tolist()
    two = build_canvas(tokenizer, "in a  ", 2, " oak")
    assert len(two.ids) == len(without.ids) + 1  # the other blank is the user's
    template = parse_template("{question}{documents}{text}{/documents} in {answer} in a", "mine")
    asked = build_prompt(tokenizer, "a ant", [], template=template, slots=2)
    assert tokenizer.decode(asked.ids[: asked.slots[0]]) == "a ant in"
    assert tokenizer.decode(asked.ids[asked.slots[-1] + 1 :]) == " in a"
    words = make_tokenizer()  # writes no blanks at all
    assert build_canvas(words, "Who ", 2).ids.tolist() == build_canvas(words, "Who", 2).ids.tolist()


TEMPLATE = "{question}\n{documents}\n{number}: {text}\n{/documents}\n{answer} and {question}"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_template_may_say_where_the_answer_stands(name):
    tokenizer = TOKENIZERS[name]
    template = parse_template(TEMPLATE, "mine")
    documents = [Document("", "It is in Port Alden.", gold=True)]
    prompt = build_prompt(tokenizer, "Where?", documents, ["Port Alden"], template=template, slots=3)
    check_partition(tokenizer, prompt)
    labels = [region.label for region in prompt.regions]
    place = labels.index("answer")
    assert labels.count("answer") == 1 and labels[place - 1] != "query" and "query" in labels[place:]
    assert len(prompt.regions[place]) == 3 == len(prompt.slots) and prompt.answer is None
    assert len(prompt.marks["evidence"]) >= len(prompt.marks["gold_answer"]) > 0
    known = build_prompt(tokenizer, "Where?", documents, template=template, slots="in Port Alden")
    assert len(known.slots) == len(known.answer) > 0
    needed = len(prompt.ids) - 3 - len(prompt.marks["evidence"])
    cut = build_prompt(tokenizer, "Where?", documents, template=template, slots=3, room=needed + 2)
    assert len(cut.ids) - 3 <= needed + 2 and cut.cut[0] > 0
    with pytest.raises(UserError, match=r"The template mine has \{answer\}: say how many slots"):
        build_prompt(tokenizer, "Where?", documents, template=template)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_known_answer_follows_the_prompt_where_the_template_does_not_place_it(name):
    """What the sampler's own slots would follow: markup and [SEP] too."""
    tokenizer = TOKENIZERS[name]
    asked = build_prompt(tokenizer, "Where?", [])
    known = build_prompt(tokenizer, "Where?", [], slots=" it is")
    assert known.regions[-1].label == "answer" and known.slots[-1] == len(known.ids) - 1
    assert known.ids[: known.slots[0]].tolist() == asked.ids.tolist()
    assert build_prompt(tokenizer, "Where?", [], slots=4).slots is None


def test_a_template_has_one_place_for_the_answer():
    with pytest.raises(UserError, match="more than once"):
        parse_template(TEMPLATE + "{answer}", "mine")
    both = "{before}\n{question}{answer}\n{/before}\n{documents}\n{text}\n{/documents}\n"
    both += "{after}\n{question}{answer}{/after}"
    assert parse_template(both, "mine").has_answer and not read_template("default").has_answer
