"""The word-level tokenizer: nothing of the world is unknown to it, offsets are exact, text comes back as it was."""

import pytest
from transformers import AutoTokenizer

from floatscope.qa.prompts import build_prompt
from floatscope.qa.world import KINDS, World
from floatscope.qa.world.vocabulary import SPECIALS, make_tokenizer, vocabulary


@pytest.mark.slow
def test_world_text_survives_the_round_trip_without_unknown_words():
    tokenizer, world = make_tokenizer(), World(0)
    for kind in (kind for kind, row in KINDS.items() if not row.layout):  # passages: test_accounts
        for sample in world.samples(kind, 20, documents=0 if kind.startswith("closed") else 12):
            prompt = build_prompt(tokenizer, sample.question, sample.documents)
            assert tokenizer.unk_token_id not in prompt.ids
            assert tokenizer.decode(prompt.ids[1:]) == prompt.text
            answer = tokenizer(sample.answers[0], add_special_tokens=False)["input_ids"]
            assert len(answer) >= 2 and tokenizer.unk_token_id not in answer


def test_offsets_point_at_the_characters_of_each_token():
    tokenizer = make_tokenizer()
    text = "Document 12: Mara Voss.  Born in May 1961,\nwas it?"
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    cut = [text[start:stop] for start, stop in encoded["offset_mapping"]]
    assert [c for c, token in zip(cut, tokens, strict=True) if token != "<unk>"] == [t for t in tokens if t != "<unk>"]
    assert "".join(cut) == text.replace(" ", "")


def test_structure_is_made_of_tokens_of_its_own():
    tokens = make_tokenizer().tokenize("Document 20: A longer account, read elsewhere.\nAnswer:")
    assert tokens[:4] == ["Document", "2", "0", ":"]
    assert {"\n", ",", ".", ":"} <= set(tokens)


def test_specials_come_first_and_a_saved_tokenizer_is_read_back(tmp_path):
    tokenizer = make_tokenizer()
    assert list(vocabulary())[: len(SPECIALS)] == list(SPECIALS)
    assert tokenizer.convert_tokens_to_ids(["<pad>", "<bos>", "<eos>", "<mask>", "<unk>"]) == [0, 1, 2, 3, 4]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "Question: Who wrote The Silver River?\nAnswer:"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert again.decode(again(text)["input_ids"]) == text
    assert (again.mask_token_id, again.bos_token_id, again.eos_token_id, again.pad_token_id) == (3, 1, 2, 0)
