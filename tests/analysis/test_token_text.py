"""Classes of token texts as different tokenizers write them."""

import pytest

from floatscope.analysis.token_text import FUNCTION_WORDS, text_class

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
    "punctuation": [".", "Ġ(", '."', "▁-", "##,", "?", ":\n", "…", "。", "<0x2E>", "Ġ$", "<", ">"],
    "function": ["Ġthe", "▁of", " The", "and", "'s", "Ġn't", "who", "##ed".replace("ed", "to")],
    "number": ["42", "Ġ1969", "3.14", "▁7", "1,000", "21st"],
    "content": ["ĠParis", "▁king", "Question", "##ing", "Ġ北京", "naïve", "Ġ3D", "more", "Ã©"],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in CASES.items() for text in texts])
def test_class(name, text):
    assert text_class(text) == name


def test_the_word_list_is_plain_and_lower_case():
    assert all(word == word.lower() and " " not in word for word in FUNCTION_WORDS)
    assert not {"more", "most", "first", "own"} & FUNCTION_WORDS
