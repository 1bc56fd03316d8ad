"""Stress curves: every point with its own baselines and the best guess of its condition."""

import pytest

from floatscope.analysis.palette import MODELS
from floatscope.reports.curves import stress_curves, stress_figure
from tests.analysis.scenes import scenes
from tests.reports.making import score_row, score_table

AXIS = "place of the gold document"


def made():
    """Two tasks whose baselines differ, two models, two guesses; a point without a value is left out."""
    rows = []
    for task, shift in (("t", 0.0), ("u", 0.1)):
        for condition, value in (("closed-book", 0.1), ("oracle", 0.8)):
            about = {"task": task, "stressor": "baseline", "condition": condition}
            rows += [score_row("m", "score", value + shift, 0, 1, **about)]
            rows += [score_row("a", "score", value + shift + 0.05, 0, 1, **about)]
            rows += [score_row("best", "guess", 0.99, 0, 1, **about)]
        for place in (0, 2):
            about = {"task": task, "stressor": "position", "condition": f"position/3/{place}", "documents": 3}
            about |= {"panel": f"{task}, among 3 documents", "axis": AXIS, "x": str(place)}
            value = None if (task, place) == ("u", 2) else 0.5 + shift + place / 10
            rows.append(score_row("a", "score", value, 0.25, 0.75, n=7, **about))
            rows.append(score_row("a", "score", 0.01, 0.0, 0.02, metric="f1", **about))
            rows.append(score_row("m", "score", 0.6 + shift, 0.5, 0.7, n=9, **about))
            rows.append(score_row("low", "guess", 0.0, 0, 1, **about))
            rows.append(score_row("best", "guess", 0.2 + place / 10 + shift, 0, 1, **about))
    rows.append(score_row("m", "score", 0.9, 0, 1, documents=5, task="t"))
    return score_table(rows)


def test_points_have_their_own_baselines_and_the_best_guess():
    found = stress_curves(made(), ("m", "a"))
    assert found.columns == [
        "stressor", "task", "panel", "axis", "x", "model", "metric", "value", "low", "high", "n", "closed-book",
        "oracle", "guess",
    ]  # fmt: skip
    assert set(found["metric"]) == {"accuracy"}
    rows = found.drop("stressor", "panel", "axis", "metric").rows()
    shown = [tuple(round(cell, 9) if isinstance(cell, float) else cell for cell in row) for row in rows]
    assert shown == [
        ("t", "0", "m", 0.6, 0.5, 0.7, 9, 0.1, 0.8, 0.2),
        ("t", "2", "m", 0.6, 0.5, 0.7, 9, 0.1, 0.8, 0.4),
        ("u", "0", "m", 0.7, 0.5, 0.7, 9, 0.2, 0.9, 0.3),
        ("u", "2", "m", 0.7, 0.5, 0.7, 9, 0.2, 0.9, 0.5),
        ("t", "0", "a", 0.5, 0.25, 0.75, 7, 0.15, 0.85, 0.2),
        ("t", "2", "a", 0.7, 0.25, 0.75, 7, 0.15, 0.85, 0.4),
        ("u", "0", "a", 0.6, 0.25, 0.75, 7, 0.25, 0.95, 0.3),
    ]
    assert set(found["stressor"]) == {"position"} and set(found["axis"]) == {AXIS}
    assert found["panel"].unique(maintain_order=True).to_list() == ["t, among 3 documents", "u, among 3 documents"]


@pytest.mark.slow
def test_the_figure_draws_a_panel_for_each_curve():
    figure = stress_figure(stress_curves(made(), ("m", "a")), ("m", "a"))
    first, second = scenes(figure)
    assert (first.title, second.title) == ("t, among 3 documents", "u, among 3 documents")
    assert first.labels["x"] == ["0", "2"] and AXIS in figure.svg()

    def heights(kind, **look):
        return [round(1 - y / 140, 4) for _, y in first.places(kind, **look)]

    blue, green = MODELS[:2]
    thin = {"strokeWidth": 1.2}
    assert heights("symbol", fill=blue) == [0.6, 0.6] and heights("symbol", fill=green) == [0.5, 0.7]
    assert heights("line", stroke=blue, strokeDash=[1.5, 2.5], **thin) == [0.1, 0.1]  # closed-book
    assert heights("line", stroke=green, strokeDash=[1.5, 2.5], **thin) == [0.15, 0.15]
    assert heights("line", stroke=blue, strokeDash=[4, 3], **thin) == [0.8, 0.8]  # oracle
    assert heights("line", stroke=green, strokeDash=[4, 3], **thin) == [0.85, 0.85]
    assert heights("line", stroke=blue, strokeDash=[1, 0], **thin) == [0.2, 0.4]  # guess
    bands = {(m["fill"], round(1 - m["y"] / 140, 4), round(1 - m["y2"] / 140, 4)) for m in first.marks("area")}
    assert bands == {(blue, 0.5, 0.7), (green, 0.25, 0.75)}


def test_no_stress_no_curves():
    assert stress_curves(made().filter(stressor="documents"), ("m",)).is_empty()
    assert stress_curves(made().clear(), ()).is_empty()
