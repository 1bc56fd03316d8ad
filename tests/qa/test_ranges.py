"""The short syntax of values on the command line."""

import pytest

from floatscope.errors import UserError
from floatscope.qa.stressors.ranges import check_documents, parse_integers, parse_names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (3,)),
        ("0..3", (0, 1, 2, 3)),
        ("0..10..4", (0, 4, 8)),
        ("8, 32,128", (8, 32, 128)),
        ("2,0..3,2", (2, 0, 1, 3)),
        ("all", (0, 5)),
        ("4..4", (4,)),
    ],
)
def test_integers(text: str, expected: tuple[int, ...]) -> None:
    assert parse_integers(text, everything=(0, 5), least=0) == expected


def test_doubling_ranges() -> None:
    assert parse_integers("8..256", (), least=1, doubling=True) == (8, 16, 32, 64, 128, 256)
    assert parse_integers("3..20", (), least=1, doubling=True) == (3, 6, 12)
    assert parse_integers("8..24..8", (), least=1, doubling=True) == (8, 16, 24)


@pytest.mark.parametrize("text", ["", "a", "1..", "..3", "5..1", "1..2..3..4", "1..5..0", "1,,2", "1.5", "1-3"])
def test_unreadable_values_are_sentences(text: str) -> None:
    with pytest.raises(UserError, match=r"write 3, 0\.\.10"):
        parse_integers(text, everything=(), least=0)


def test_values_out_of_bounds_are_sentences() -> None:
    with pytest.raises(UserError, match="has -1, but the lowest"):
        parse_integers("-1..3", (), least=0)
    with pytest.raises(UserError, match="starts at 1"):
        parse_integers("0..8", (), least=0, doubling=True)


def test_ranges_that_no_run_could_do_are_sentences() -> None:
    for text in ("0..1000000000", f"0..{'9' * 30}", "5,0..10000", f"0..{10**12}..{10**8}"):
        with pytest.raises(UserError, match="more than 10000 values"):
            parse_integers(text, (), least=0)
    assert len(parse_integers("1..10000", (), least=0)) == 10_000
    assert parse_integers(f"0..{10**12}..{10**12}", (), least=0) == (0, 10**12)
    with pytest.raises(UserError, match="cannot be read"):
        parse_integers("9" * 5000, (), least=0)
    with pytest.raises(UserError, match="too many for a stress test: ask for 1 to 10000"):
        check_documents(10**9)


def test_names() -> None:
    known = ("gap", "order", "split")
    assert parse_names("order, gap", known) == ("order", "gap")
    assert parse_names("split,all", known) == ("split", "gap", "order")
    with pytest.raises(UserError, match="no 'gaps' here; known are gap, order, split and all"):
        parse_names("gaps", known)
