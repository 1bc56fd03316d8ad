"""The answers of a run one by one: what the page's list holds, place by place, and what is printed and written."""

import polars as pl
import pytest

from floatscope.errors import UserError
from floatscope.reports.answers import failures_text, samples_data, write_units


def answer(model, sample, prediction, accuracy, condition="documents/2", **rest):
    about = {"task": "t", "condition": condition, "sample": sample, "model": model, "question": f"Who is {sample}?"}
    told = {"answers": [sample.upper()], "prediction": prediction, "accuracy": accuracy, "em": 0.0, "f1": 0.5}
    return about | told | {"trace": None, "gold": [2], "stands_in": [1, 2], "place": "gold"} | rest


NOTHING = {"gold": [], "stands_in": [], "place": None}
UNITS = pl.DataFrame(
    [
        answer("b", "s1", "S1 |", 1.0),
        answer("b", "s2", "no", 0.0, stands_in=[], place="nowhere"),
        answer("b", "s1", "=no", 0.0, "documents/0", **NOTHING),
        answer("a", "s1", "no", 0.0, stands_in=[1], place="another document"),
        answer("c", "s1", "S1", 1.0, "documents/0", **NOTHING),
    ],
    schema_overrides={"gold": pl.List(pl.Int64), "stands_in": pl.List(pl.Int64), "trace": pl.String},
)


def test_the_list_has_a_row_per_case_and_the_answers_in_the_order_of_the_models():
    found = samples_data(UNITS, ["a", "b", "unasked"])
    assert found["models"] == ["a", "b"] and found["tasks"] == ["t"]
    assert found["conditions"] == ["documents/2", "documents/0"]
    assert found["samples"] == [[0, "s1", "Who is s1?", ["S1"]], [0, "s2", "Who is s2?", ["S2"]]]
    assert found["rows"] == [
        [0, 0, [2], [["no", 0, [1], "another document"], ["S1 |", 1, [1, 2], "gold"]]],
        [1, 0, [2], [None, ["no", 0, [], "nowhere"]]],
        [0, 1, [], [None, ["=no", 0, [], None]]],
    ]


def test_the_text_has_counts_and_says_where_predictions_stand():
    counts = pl.DataFrame({"task": ["t"], "condition": ["documents/2"], "model": ["b"], "answers": [2], "wrong": [1]})
    lines = failures_text(UNITS[:3], counts).splitlines()
    assert lines[0] == "**Wrong answers, and where the predictions of these stand**"
    assert lines[2:5:2] == ["| task | condition | model | answers | wrong |", "| t | documents/2 | b | 2 | 1 |"]
    start = lines.index("**Answers**")
    names = "| task | condition | sample | model | question | gold answer | prediction | stands in | gold is |"
    assert lines[start + 2] == names
    assert lines[start + 4 : start + 7] == [
        r"| t | documents/2 | s1 | b | Who is s1? | S1 | S1 \| | document 1, 2 | document 2 |",
        "| t | documents/2 | s2 | b | Who is s2? | S2 | no | nowhere | document 2 |",
        "| t | documents/0 | s1 | b | Who is s1? | S1 | =no | nowhere | nowhere |",
    ]
    assert "**Answers**" not in failures_text(UNITS[:0], counts)


def test_files_are_tables_whose_cells_are_no_formulas(tmp_path):
    write_units(UNITS, tmp_path / "answers.parquet")
    assert pl.read_parquet(tmp_path / "answers.parquet").equals(UNITS)
    write_units(UNITS, tmp_path / "answers.csv")
    told = pl.read_csv(tmp_path / "answers.csv")
    assert told["prediction"].to_list() == ["S1 |", "no", "'=no", "no", "S1"]
    with pytest.raises(UserError, match=r"answers\.txt should end in \.csv or \.parquet"):
        write_units(UNITS, tmp_path / "answers.txt")
