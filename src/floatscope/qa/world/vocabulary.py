"""The twins' word-level tokenizer, made from the world's words as a plain `tokenizers` JSON. It knows no model.

Words, years, digits, punctuation marks and newlines are tokens; spaces are not, and come back in decoding.
"""

import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from floatscope.qa.world.relations import FILLERS, NAME_KINDS, PATHS, RELATIONS, UNANSWERABLE

PAD, BOS, EOS, MASK, UNKNOWN = SPECIALS = ("<pad>", "<bos>", "<eos>", "<mask>", "<unk>")
PAD_ID, BOS_ID, EOS_ID, MASK_ID, _ = range(len(SPECIALS))  # specials come first in the vocabulary
PATTERN = r"\n|\d{4}|\d|[A-Za-z]+(?:[-'][A-Za-z]+)*|[^\sA-Za-z\d]"
CONTEXT = 2048
SCAFFOLD_WORDS = "Document Question Answer :"


def vocabulary() -> dict[str, int]:
    """Specials first, then every token that world text can hold, in a fixed order."""
    texts = [SCAFFOLD_WORDS, "\n", "0 1 2 3 4 5 6 7 8 9", ". , : ? ! ; ( ) \" - '", UNANSWERABLE, *FILLERS]
    for relation in RELATIONS.values():
        texts += [*relation.statements, *relation.questions]
    for path in PATHS:
        texts += path.questions
    for kind in NAME_KINDS.values():
        texts += [kind.pattern, *kind.keys, *kind.companions]
    plain = re.sub(r"\{\w+\}", " ", "\n".join(texts))
    tokens = [*SPECIALS, *re.findall(PATTERN, plain)]
    return {token: index for index, token in enumerate(dict.fromkeys(tokens))}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer that all twins share; `save_pretrained` writes it, AutoTokenizer reads it."""
    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    # Whatever the pattern does not match is spaces: keep the matches, drop the rest.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [pre_tokenizers.Split(Regex(PATTERN), "isolated"), pre_tokenizers.Split(Regex(r"[^\S\n]+"), "removed")]
    )
    tokenizer.decoder = decoders.Sequence(  # type: ignore[assignment]
        [
            decoders.WordPiece(prefix="\0", cleanup=False),  # puts a space before each token but the first
            decoders.Fuse(),
            decoders.Replace(Regex(r" (?=[.,:;?!)\n])"), ""),
            decoders.Replace(Regex(r"(?<=\n) "), ""),
            decoders.Replace(Regex(r"(?<=\b\d) (?=\d\b)"), ""),  # the digits of a document's number
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        mask_token=MASK,
        unk_token=UNKNOWN,
        model_max_length=CONTEXT,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
