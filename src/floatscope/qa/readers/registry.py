"""The registry of shapes, and which one a record has. To add a shape is to add a file and a row here."""

from difflib import get_close_matches

from floatscope.errors import UserError
from floatscope.qa.readers import hotpotqa, kilt, lost_in_the_middle, ms_marco, paper, plain, squad, triviaqa
from floatscope.qa.readers.fields import Data
from floatscope.qa.readers.shape import Shape

# Asked in this order: a shape stands before those whose looser test its records would pass as well.
SHAPES: dict[str, Shape] = {
    module.SHAPE.name: module.SHAPE
    for module in (paper, lost_in_the_middle, hotpotqa, squad, triviaqa, ms_marco, kilt, plain)
}


def shape_named(name: str) -> Shape:
    if name in SHAPES:
        return SHAPES[name]
    close = get_close_matches(name, SHAPES, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UserError(f"There is no dataset shape {name!r}: {hint}Known: {', '.join(SHAPES)}.")


def detect_shape(data: Data) -> Shape | None:
    return next((shape for shape in SHAPES.values() if shape.matches(data)), None)
