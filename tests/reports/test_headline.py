"""Table 1: every cell and bar in its place, from numbers written down by hand."""

import re

from floatscope.reports.headline import headline_html
from tests.reports.making import score_row, score_table


def made():
    """An ARM that the study names first, a diffuser called "guess...", a guess; two numbers of documents."""
    rows = []
    for task, shift in (("t<1>", 0.0), (None, 0.01)):
        for model, value, gains in (("arm", 0.1, {2: 0.2, 5: 0.4}), ("guess-me", 0.2, {2: -0.1, 5: 0.5})):
            rows += [
                score_row(model, "score", v + shift, v - 0.05, v + 0.1, documents=documents, task=task)
                for documents, v in ((0, value), (2, value + gains[2]), (5, value + gains[5]))
            ]
            rows += [
                score_row(model, "gain", gain, gain - 0.1, gain + 0.3, documents=documents, task=task)
                for documents, gain in gains.items()
            ]
        rows += [score_row("other", "guess", 0.3, 0.2, 0.4, documents=documents, task=task) for documents in (0, 2)]
        rows.append(score_row("other", "guess", None, None, None, documents=5, task=task))
        rows.append(score_row("arm", "difference", 0.9, 0.9, 0.9, documents=5, task=task, beside="guess-me"))
    rows.append(score_row("arm", "score", 0.99, 0.99, 0.99, documents=5, task="t<1>", metric="f1"))
    rows.append(score_row("arm", "score", 0.99, 0.99, 0.99, task="t<1>", stressor="slots", condition="slots/8"))
    return score_table(rows)


def rows_of(html: str) -> list[list[str]]:
    """The texts of each row's cells; the class of the row before them."""
    found = []
    for kind, row in re.findall(r"<tr( class=\"\w+\")?>(.*?)</tr>", html):
        cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
        found.append([re.sub(r'.*"(\w+)".*', r"\1", kind), *(re.sub(r"</?small>", "", cell) for cell in cells)])
    return found


def bars(cells: list[str]) -> list[str]:
    return [" ".join(re.findall(r"(?:left|width):[\d.-]+%", cell)) for cell in cells]


def test_every_cell_stands_in_its_row_and_column():
    html = headline_html(made(), ("guess-me", "arm"))
    head, *rows = rows_of(html)
    assert head == ["", "model", "without", "with 2", "with 5", "gain of 2", "", "gain of 5", ""]
    plain = [[cell for cell in row if "class=" not in cell] for row in rows]
    assert plain == [
        ["group", "t&lt;1&gt;"],
        ["", "guess-me", "20.0 [15.0, 30.0]", "10.0 [5.0, 20.0]", "70.0 [65.0, 80.0]", "−10.0 [−20.0, +20.0]",
         "+50.0 [+40.0, +80.0]"],
        ["", "arm", "10.0 [5.0, 20.0]", "30.0 [25.0, 40.0]", "50.0 [45.0, 60.0]", "+20.0 [+10.0, +50.0]",
         "+40.0 [+30.0, +70.0]"],
        ["guess", "guess: other", "30.0 [20.0, 40.0]", "30.0 [20.0, 40.0]", "–", "–", "", "–", ""],
        ["group", "Avg"],
        ["", "guess-me", "21.0 [15.0, 30.0]", "11.0 [5.0, 20.0]", "71.0 [65.0, 80.0]", "−10.0 [−20.0, +20.0]",
         "+50.0 [+40.0, +80.0]"],
        ["", "arm", "11.0 [5.0, 20.0]", "31.0 [25.0, 40.0]", "51.0 [45.0, 60.0]", "+20.0 [+10.0, +50.0]",
         "+40.0 [+30.0, +70.0]"],
        ["guess", "guess: other", "30.0 [20.0, 40.0]", "30.0 [20.0, 40.0]", "–", "–", "", "–", ""],
    ]  # fmt: skip


def test_bars_share_one_line_from_the_lowest_bound_to_the_highest():
    """From −20 to +80: zero at 20 %, −10 [−20, +20] at 10 % from 0 to 40 %, +50 [+40, +80] at 70 % from 60 to 100 %."""
    _, _, diffuser, arm, *_ = rows_of(headline_html(made(), ("guess-me", "arm")))
    assert bars(diffuser[6::2]) == [
        "left:20.0% left:0.0% width:40.0% left:10.0%",
        "left:20.0% left:60.0% width:40.0% left:70.0%",
    ]
    assert bars(arm[6::2]) == [
        "left:20.0% left:30.0% width:40.0% left:40.0%",
        "left:20.0% left:50.0% width:40.0% left:60.0%",
    ]


def test_one_gain_needs_no_number_and_without_gains_there_is_no_column():
    one = made().filter(documents=0).vstack(made().filter(documents=5))
    assert rows_of(headline_html(one, ()))[0] == ["", "model", "without", "with 5", "gain", ""]
    none = made().filter(documents=5, statistic="score")
    head, group, *rows = rows_of(headline_html(none, ()))
    assert (head, group) == (["", "model", "with 5"], ["group", "t&lt;1&gt;"])
    assert rows[0] == ["", "arm", "50.0 [45.0, 60.0]"] and rows[1][1] == "guess-me"  # the table's own order


def test_documents_of_their_own_stand_after_every_number_of_them():
    rows = [score_row("m", "score", 0.1, 0.0, 0.2, documents=count) for count in (None, 5, 0)]
    rows += [score_row("m", "gain", 0.1, 0.0, 0.2, documents=count) for count in (None, 5)]
    head = rows_of(headline_html(score_table(rows), ("m",)))[0]
    places = [next(place for place, cell in enumerate(head) if cell.endswith(name)) for name in ("without", "5", "own")]
    assert places == sorted(places) and "own" in head[-2] and "5" in head[-4]
