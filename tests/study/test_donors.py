"""Patching through a study: exchanged documents token by token, shares by hand, a run against calls of fs.patch."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import floatscope as fs
from floatscope.canvas import positions, regions_from_labels
from floatscope.qa.samples import Document, Sample
from floatscope.reports.curves import patch_figure
from floatscope.reports.tables import patches
from floatscope.statistics import ratio_interval
from floatscope.study.donors import OTHERS, exchanged, patch_frame
from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan
from floatscope.study.reporting import report, tables_text
from floatscope.study.running import run_study

SHOWN = (
    Document("Nordwind", "Max Born founded Nordwind."),
    Document("Ferrox Steel", "Ida Ritter founded Ferrox Steel.", gold=True),
)
WRONG = tuple(
    Document(name, text)
    for name, text in (
        ("Hydrax", "Hydrax."),
        ("Hydrax Steel", "Ada Lovell founded Hydrax Steel."),
        ("Hydrax", "Ada Lovell founded Hydrax long ago, and nobody knows in which year or in which town that was."),
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [(0, 0), (1, 0), (2, 2)])
def test_gold_documents_are_exchanged_token_by_token(chosen):
    """One that is too short begins again, one that is too long is cut; nothing else of the prompt changes."""
    model = fs.load("twin-arm")

    def build(documents):
        return fs.build_prompt(model.tokenizer, "Who founded Ferrox Steel?", documents, ["Ida Ritter"])

    others = tuple(WRONG[place] for place in chosen)
    prompt, donor, control = exchanged(build, Sample("s", "", ("Ida Ritter",), SHOWN, {OTHERS: others}))
    true = build(SHOWN)
    assert donor.ids.tolist() == true.ids.tolist() and len(prompt.ids) == len(control.ids) == len(true.ids)
    places = positions(true.regions, "doc 2")
    for found, other in zip((prompt, control), others, strict=True):
        own = build([SHOWN[0], other])
        tokens = own.ids[positions(own.regions, "doc 2")].tolist()
        again = (tokens * len(places))[: len(places)]
        assert found.ids[places].tolist() == again
        assert np.delete(found.ids, places).tolist() == np.delete(true.ids, places).tolist()
        assert found.regions == true.regions


def test_a_ratio_of_means_and_its_interval():
    above, below = np.array([[1.0, -2.0], [3.0, 0.0], [2.0, 2.0]]), np.array([4.0, 2.0, 6.0])
    found = ratio_interval(above, below)
    np.testing.assert_allclose(found.estimate, [0.5, 0.0])
    rng, draws = np.random.default_rng(7), []
    for _ in range(4000):
        chosen = rng.integers(0, 3, 3)
        draws.append(above[chosen].sum(0) / below[chosen].sum())
    np.testing.assert_allclose([found.low, found.high], np.quantile(draws, [0.025, 0.975], axis=0), atol=0.06)


def test_the_share_that_comes_back_is_a_ratio_of_means_over_answers_that_are_long_enough():
    rows = [
        {"prompt": -4.0, "donor": -2.0, "patched": [[-3.0, -4.0], [-2.0, -3.5]], "control": [[-4.0, -4.0]] * 2},
        {"prompt": -6.0, "donor": -2.0, "patched": [[-5.0], [-3.0]], "control": [[-5.4], [-6.0]]},
    ]
    about = {"model": "m", "task": "t", "condition": "patch/5"}
    table = patch_frame([about | {"patched": {"outputs": row}} for row in rows])
    found = {(layer, step): rest for layer, step, *rest in table.select("layer", "step", "value", "n").iter_rows()}
    assert found == {
        (0, 0): [pytest.approx(2 / 6), 2],
        (1, 0): [pytest.approx(5 / 6), 2],
        (0, 1): [pytest.approx(0.0), 1],
        (1, 1): [pytest.approx(0.25), 1],
    }
    assert table.filter(step=0)["control"].to_list() == pytest.approx([0.1, 0.0])
    assert patches(table).rows[0] == ["t", "m", "outputs", "0", "33 (10)", "0 (0)"]
    assert patch_frame([]).is_empty()


def study(**more):
    curve = Curve("patch", "all", options={"documents": 3})
    models = (ModelPlan("twin-arm"), ModelPlan("twin-llada"))
    return Study("patches", models, (TaskPlan("world:rag:3"),), (curve,), limit=2, slots=4, **more)


@pytest.mark.slow
def test_a_run_of_patches_is_that_of_calls(tmp_path):
    from floatscope.study.units import load_task

    made = run_study(study(), tmp_path / "run").run
    assert made.results()["error"].is_null().all()
    table = pl.read_parquet(tmp_path / "run" / "tables" / "patched.parquet")
    assert table.equals(made.patched())
    [cell] = made.study.cells(made.study.tasks[0])
    task = load_task(made.study, made.study.tasks[0])
    for name in ("twin-arm", "twin-llada"):
        model, ways, gains = fs.load(name), [], []
        for sample in task.samples:
            shown = task.under(cell.condition, sample, 0)
            donor = fs.build_prompt(model.tokenizer, shown.question, shown.documents)
            built = [
                fs.build_prompt(
                    model.tokenizer, shown.question, [other if one.gold else one for one in shown.documents]
                )
                for other in shown.metadata[OTHERS]
            ]
            nearest = min(built, key=lambda one, donor=donor: abs(len(one.ids) - len(donor.ids)))
            label = f"doc {[one.gold for one in shown.documents].index(True) + 1}"
            ids, places = donor.ids.copy(), positions(donor.regions, label)
            ids[places] = np.resize(nearest.ids[positions(nearest.regions, label)], len(places))
            assert not any(answer in model.text(ids) for answer in sample.answers)
            answer = model.tokenizer(f" {sample.answers[0]}", add_special_tokens=False)["input_ids"][:4]
            one = fs.patch(model, replace(donor, ids=ids), donor, answer, slots=4, outputs=True)
            ways.append(one.donor - one.prompt)
            gains.append(one.patched[:, 0] - one.prompt)
        own = table.filter(model=name, kind="outputs", step=0)
        np.testing.assert_allclose(own["value"], np.sum(gains, axis=0) / np.sum(ways), atol=1e-4)
        assert own["value"].max() > 0.1 > own["control"].abs().max()
    assert "| rag | twin-arm | outputs | 0 |" in tables_text(made, "markdown")
    assert "Which layers and steps bring the answer back" in report(made, {}).read_text()
    figure = patch_figure(table, ["twin-llada", "twin-arm"])
    assert len(figure.spec()["vconcat"]) == 2 and figure.table.equals(table)


def test_what_cannot_be_patched_is_told():
    with pytest.raises(fs.UserError, match="there is no 'rows' here; known are patterns, outputs"):
        Curve("patch", "rows")
    model, edits = fs.load("twin-llada"), [fs.Edit("patch")]
    for call in (fs.generate, fs.trace):
        with pytest.raises(fs.UserError, match=r"only fs\.patch is given"):
            call(model, [1, 5, 6], model.sampler(length=4), edits=edits)


def test_the_two_candidates_nearest_in_length_are_taken_the_nearest_first():
    """Tokens of a document are the letters of its text; both gold documents are exchanged, the other one is not."""

    def build(documents):
        labels = [f"doc {place}" for place, one in enumerate(documents, 1) for _ in one.text]
        ids = np.array([ord(letter) for one in documents for letter in one.text])
        return fs.Prompt(text=" ".join(one.text for one in documents), ids=ids, regions=regions_from_labels(labels))

    shown = (Document("", "abcd", gold=True), Document("", "XY"), Document("", "efg", gold=True))
    others = tuple(Document("", text) for text in ("1" * 9, "2345", "6", "789"))  # 18, 8, 2 and 6 tokens for 7
    prompt, donor, control = exchanged(build, Sample("s", "", (), shown, {OTHERS: others}))
    assert ["".join(map(chr, one.ids)) for one in (prompt, donor, control)] == ["2345XY234", "abcdXYefg", "7897XY789"]


def test_a_share_that_comes_back_has_its_interval_and_the_log_probabilities_it_is_of():
    """Two samples alike: every resample is the same. Of two that differ the interval is from one to the other."""
    row = {"prompt": -4.0, "donor": -2.0, "patched": [[-3.5]], "control": [[-4.5]]}
    other = {"prompt": -6.0, "donor": -2.0, "patched": [[-3.0]], "control": [[-6.0]]}
    about = {"model": "m", "task": "t", "condition": "patch/5"}

    def table(*rows):
        return patch_frame([about | {"patched": {"outputs": row}} for row in rows]).row(0, named=True)

    names = ("value", "low", "high", "control", "prompt", "donor", "n")
    assert [table(row, row)[name] for name in names] == pytest.approx([0.25, 0.25, 0.25, -0.25, -4, -2, 2])
    assert [table(row, other)[name] for name in names] == pytest.approx([3.5 / 6, 0.25, 0.75, -0.5 / 6, -5, -2, 2])
