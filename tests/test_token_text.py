"""Classes of token texts as different tokenizers write them."""

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from floatscope.token_text import FUNCTION_WORDS, plain_text, text_class

CASES = {
    "special": [
        "<|endoftext|>",
        "<s>",
        "</s>",
        "[MASK]",
        "[CLS]",
        "[unused1]".upper(),
        "<|mdm_mask|>",
        "<pad>",
        "<extra_id_0>",
        "",
    ],
    "whitespace": ["Ċ", "Ġ", "\n", "\n\n", "ĊĊ", "▁", "▁▁", "<0x0A>", " ", "ĉ"],
    "punctuation": [".", "Ġ(", '."', "▁-", "âĢĵ", "ĠâĢľ", "##,", "?", ":\n", "…", "。", "<0x2E>", "Ġ$", "<", ">"],
    "function": ["Ġthe", "▁of", " The", "and", "'s", "Ġn't", "who", "##ed".replace("ed", "to")],
    "number": ["42", "Ġ1969", "3.14", "▁7", "1,000", "21st"],
    "content": ["ĠParis", "▁king", "Question", "##ing", "Ġ北京", "naïve", "Ġ3D", "more", "Ã©"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in CASES.items() for text in texts])
def test_class(name, text):
    assert text_class(text) == name


@pytest.mark.parametrize("text", ["–", "ö", " café", "北京", " “", "\n", "\x07", "naïve €5 – 🙂", "plain"])
def test_letters_of_byte_level_tokenizers_are_read_back(text):
    """As the library `tokenizers` writes them."""
    ((written, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    assert plain_text(written) == text
    assert text_class(written) == text_class(text)


@pytest.mark.parametrize("text", ["é", "naïve", "âĢ", "北京"])
def test_what_is_no_whole_letter_in_bytes_is_left_as_it_is(text):
    assert plain_text(text) == text and plain_text(f"▁{text}") == f" {text}"


def test_the_word_list_is_plain_and_lower_case():
    assert all(word == word.lower() and " " not in word for word in FUNCTION_WORDS)
    assert not {"more", "most", "first", "own"} & FUNCTION_WORDS
