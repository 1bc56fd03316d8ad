"""Reading values as the command line has them ("0..10", "8,32,128", "all", "gap,order"), and checks of options."""

from collections.abc import Iterable, Sequence

from floatscope.errors import UserError

MOST = 10_000
"""Values of a curve, and documents of a sample; more are a slip of the finger."""


def parse_integers(text: str, everything: Sequence[int], least: int, doubling: bool = False) -> tuple[int, ...]:
    """Numbers and ranges, ends included, joined by commas, each once; "all" is `everything`.

    A range goes up by one, "a..b..c" by c; with `doubling` a range doubles: 8..256 is 8,16,...,256.
    """
    values: dict[int, None] = {}
    for part in (part.strip() for part in text.split(",")):
        values |= dict.fromkeys(everything if part == "all" else _range(part, text, doubling))
    if too_low := [value for value in values if value < least]:
        raise UserError(f"{text!r} has {too_low[0]}, but the lowest value here is {least}.")
    return tuple(values)


def parse_names(text: str, known: Iterable[str]) -> tuple[str, ...]:
    """Names joined by commas, each once and in order; "all" is every known one."""
    names = tuple(known)
    values: dict[str, None] = {}
    for part in (part.strip() for part in text.split(",")):
        if part != "all" and part not in names:
            raise UserError(f"{text!r}: there is no {part!r} here; known are {', '.join(names)} and all.")
        values |= dict.fromkeys(names if part == "all" else [part])
    return tuple(values)


def check_names(values: Sequence[str], known: Sequence[str], what: str) -> None:
    """An option that takes names: at least one, all of them known."""
    if wrong := [value for value in values if value not in known]:
        raise UserError(f"There is no {what} {wrong[0]!r}; known are {', '.join(known)}.")
    if not values:
        raise UserError(f"At least one {what} is needed; known are {', '.join(known)}.")


def check_documents(count: int) -> None:
    """An option that is a number of documents."""
    if not 1 <= count <= MOST:
        amount = "few" if count < 1 else "many"
        raise UserError(f"{count} documents are too {amount} for a stress test: ask for 1 to {MOST}.")


def _range(part: str, text: str, doubling: bool) -> list[int]:
    try:
        numbers = [int(number) for number in part.split("..")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return numbers
    if len(numbers) not in (2, 3) or numbers[1] < numbers[0] or (len(numbers) == 3 and numbers[2] < 1):
        raise UserError(f"{text!r} cannot be read at {part!r}: write 3, 0..10, 0..10..2 or 8,32,128.")
    start, stop = numbers[:2]
    if not doubling or len(numbers) == 3:
        step = numbers[2] if len(numbers) == 3 else 1
        if (stop - start) // step >= MOST:
            raise UserError(
                f"{text!r} has more than {MOST} values at {part!r}: write fewer, with steps as in 0..100..10."
            )
        return list(range(start, stop + 1, step))
    if start < 1:
        raise UserError(f"{text!r} cannot be read at {part!r}: a range that doubles starts at 1 or more.")
    return [start << power for power in range(stop.bit_length()) if start << power <= stop]
