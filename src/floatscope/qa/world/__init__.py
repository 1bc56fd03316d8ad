"""The knowledge world: made-up entities and facts, and the question-answering samples that they give. Data only.

`World` deals out names and makes samples, `score_facts` checks what is written into a passage; `vocabulary` has the
tokenizer of all its words, which it does not load.
"""

from floatscope.qa.world.accounts import guess_facts, read_facts, score_facts
from floatscope.qa.world.draws import NOISES
from floatscope.qa.world.kinds import KINDS, SPLITS
from floatscope.qa.world.world import World

__all__ = ["KINDS", "NOISES", "SPLITS", "World", "guess_facts", "read_facts", "score_facts"]
