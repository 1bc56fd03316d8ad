"""Prompts: regions partition the tokens, and each token lies where its characters lie, for every kind of tokenizer."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from floatscope.canvas import positions, with_answer
from floatscope.errors import UserError
from floatscope.qa.prompts import build_prompt
from floatscope.qa.samples import Document
from floatscope.twins.tokenizer import make_tokenizer

CORPUS = ["Document 1: The Silver River. It was born in Port Alden.\nQuestion: Who, where?\nAnswer:"] * 4


def trained(model, trainer, pre_tokenizer, decoder=None, **special) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level() -> PreTrainedTokenizerFast:
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>"],
        show_progress=False,
    )
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(models.BPE(), trainer, level, decoders.ByteLevel(), bos_token="<s>")


def sentencepiece_like() -> PreTrainedTokenizerFast:
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    return trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), decoders.Metaspace(), unk_token="<unk>")


def wordpiece() -> PreTrainedTokenizerFast:
    trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizers.BertPreTokenizer(), unk_token="[UNK]")


TOKENIZERS = {"bpe": byte_level(), "unigram": sentencepiece_like(), "wordpiece": wordpiece(), "words": make_tokenizer()}
TEXT = st.text(st.sampled_from("abcAB é.,:?\n12"), max_size=20)
DOCUMENTS = st.lists(st.builds(Document, TEXT, TEXT.filter(str.strip), st.booleans()), max_size=4)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(documents=DOCUMENTS, question=TEXT.filter(str.strip))
@settings(max_examples=40, deadline=None)
def test_regions_partition_the_prompt_in_order(name, documents, question):
    prompt = build_prompt(TOKENIZERS[name], question, documents)
    edges = [0, *(region.stop for region in prompt.regions)]
    assert [region.start for region in prompt.regions] == edges[:-1]
    assert edges[-1] == len(prompt.ids)
    assert all(len(region) > 0 for region in prompt.regions)
    assert all(a.label != b.label for a, b in zip(prompt.regions, prompt.regions[1:], strict=False))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(documents=DOCUMENTS, question=TEXT.filter(str.strip))
@settings(max_examples=40, deadline=None)
def test_each_token_has_the_label_that_most_of_its_characters_have(name, documents, question):
    """An independent account: one label per character, from the template written out by hand."""
    tokenizer = TOKENIZERS[name]
    text, labels = "", []

    def add(piece, label):
        nonlocal text
        text += piece
        labels.extend([label] * len(piece))

    for number, document in enumerate(documents, 1):
        add(f"Document {number}: ", "scaffold")
        if document.title:
            add(f"{document.title}. ", f"doc {number}")
        add(document.text, f"doc {number}")
        add("\n", "scaffold")
    add("Question: ", "scaffold")
    add(question, "query")
    add("\nAnswer:", "scaffold")

    prompt = build_prompt(tokenizer, question, documents)
    assert prompt.text == text
    shift = int(tokenizer.bos_token_id is not None)
    token_labels = [region.label for region in prompt.regions for _ in range(len(region))]
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert len(offsets) + shift == len(prompt.ids)
    for (start, stop), label in zip(offsets, token_labels[shift:], strict=True):
        inside = labels[start:stop]
        if inside:
            assert inside.count(label) * len(set(inside)) >= len(inside)  # no label holds fewer than an even share


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


def test_a_canvas_is_a_prompt_and_its_answer_slots():
    prompt = build_prompt(make_tokenizer(), "Who?", [])
    canvas = with_answer(prompt.regions, 8)
    assert canvas[:-1] == prompt.regions
    assert (canvas[-1].label, canvas[-1].start, len(canvas[-1])) == ("answer", len(prompt.ids), 8)


def test_mistakes_are_sentences():
    with pytest.raises(UserError, match="question is empty"):
        build_prompt(make_tokenizer(), "  \n", [])

    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="offsets"):
        build_prompt(Slow(), "Who?", [])
