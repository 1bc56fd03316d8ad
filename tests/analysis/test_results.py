"""Tables of panels; and what every analysis owes: controls, sentences, one pass, no nan."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from floatscope.analysis import ANALYSES, Controls, Options, analyze
from floatscope.analysis.reading import find_traces, split_controls
from floatscope.analysis.results import Panel, collect, summarise
from floatscope.errors import UserError
from tests.traces.full_matrices import full_run, to_trace

pytestmark = pytest.mark.slow


def traces(model="m", seeds=range(4), **settings):
    for seed in seeds:
        run = full_run(seed=seed, **settings)
        run.canvas[run.prompt_length] = run.canvas[10]
        yield to_trace(run, model=model, metadata={"sample": f"s{seed}", "task": "ab"[seed % 2]})


def test_tables_hold_mean_interval_and_spread_over_the_samples_that_have_a_value():
    panel = Panel(("layer",))
    for values in ([1.0, None], [2.0, 5.0], [6.0, 7.0]):
        (trace,) = traces(seeds=[0])
        panel.add(trace, {"layer": [0, 1], "value": values})
    first, second = summarise(panel, Options()).iter_rows(named=True)
    assert (first["value"], first["samples"], second["value"], second["samples"]) == (3.0, 3, 6.0, 2)
    # deviations -2, -1, 3 and -1, 1; of two samples all resamples are (5, 5), (5, 7), (7, 5), (7, 7)
    assert first["spread"] == pytest.approx((14 / 3) ** 0.5) and second["spread"] == 1.0
    assert (second["low"], second["high"]) == (5.0, 7.0)


def test_every_trace_has_random_positions_of_its_own():
    def drawn(seed):
        panel = collect(traces(), ("layer",), lambda _, rng, __: {"layer": [0], "value": [rng.random()]}, seed)
        return panel.samples["value"].to_list()

    assert len({*drawn(0), *drawn(1)}) == 8  # four traces under two seeds
    assert drawn(0) == drawn(0)


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_streams_and_has_its_controls(name):
    untrained = traces("bare", seeds=range(10, 14), sharpness=0.1)
    result = analyze(name, traces(), Options(detector="zscore(1)"), Controls(untrained=untrained))
    assert result.name == name and next(iter(result.tables)) == name
    assert ANALYSES[name].description
    for table in result.tables.values():
        assert table.height
        floats = table.select(pl.col(pl.Float64))
        assert not floats.select(pl.any_horizontal(pl.all().is_nan().any()))[0, 0]
    if name != "compat":
        assert {"value", "uniform", "random", "untrained"} <= set(result.table.columns)
        # untrained is what the same analysis finds in the untrained traces
        bare = analyze(name, traces("bare", seeds=range(10, 14), sharpness=0.1), Options(detector="zscore(1)"))
        keys = [
            key
            for key, kind in bare.table.schema.items()
            if not kind.is_float() and key not in ("model", "samples", "tasks")
        ]
        both = result.table.join(bare.table, on=keys, suffix=" bare", nulls_equal=True).drop_nulls("untrained")
        assert both.height
        np.testing.assert_allclose(both["untrained"], both["value bare"], atol=1e-9)


@pytest.mark.parametrize("name", ANALYSES)
def test_models_side_by_side(name):
    both = [*traces("mdm"), *traces("arm", kind="arm")]
    result = analyze(name, both, Options(detector="zscore(1)"))
    assert set(result.table["model"]) == {"mdm", "arm"}
    alone = analyze(name, traces("mdm"), Options(detector="zscore(1)"))
    column = "value" if name != "compat" else "published"
    together = result.table.filter(model="mdm")[column]
    np.testing.assert_allclose(together.drop_nulls(), alone.table[column].drop_nulls(), atol=1e-9)


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("label", ["task", "condition"])
def test_tasks_and_conditions_are_never_pooled(name, label):
    if (name, label) == ("task_dependence", "task"):
        return  # it compares tasks

    def labelled(value, seeds, sharpness):
        for trace in traces(seeds=seeds, sharpness=sharpness):
            yield dataclasses.replace(trace, metadata=trace.metadata | {label: value})

    options = Options(detector="zscore(1)", draws=50)
    own = {"one": [*labelled("one", range(4), 1)], "other": [*labelled("other", range(4, 10), 3)]}
    bare = {"one": [*labelled("one", range(20, 24), 0.1)], "other": [*labelled("other", range(24, 28), 0.2)]}
    together = analyze(name, [*own["one"], *own["other"]], options, Controls(untrained=[*bare["one"], *bare["other"]]))
    assert {group[label] for group in together.groups} == {"one", "other"}
    numbers = ("value", "low", "high", "untrained", "published", "exact", "pearson", "steps")
    for value in own:
        alone = analyze(name, own[value], options, Controls(untrained=bare[value]))
        for table, expected in alone.tables.items():
            found = together.tables[table].filter(**{label: value})
            columns = [one for one in numbers if one in expected.columns]
            assert columns and found.height == expected.height > 0
            if table != "retrieval_heads_stability":  # its halves are drawn at random, one list after the other
                both = (part.select(columns).to_numpy() for part in (found, expected))
                np.testing.assert_allclose(*both, atol=1e-9, err_msg=table)


@pytest.mark.parametrize("name", ANALYSES)
def test_no_trace_is_a_sentence(name):
    with pytest.raises(UserError, match="no trace"):
        analyze(name, [])


@pytest.mark.parametrize("name", ANALYSES)
def test_two_models_under_one_name(name):
    with pytest.raises(UserError, match="share the name"):
        analyze(name, [*traces("m"), *traces("m", layers=2)])


def test_untrained_control_names_its_model():
    def control(model, height, seed):
        trace = to_trace(full_run(seed=seed), model=f"{model}-bare", metadata={"control_of": model})
        return [trace] * height

    models = [*traces("a", seeds=[0, 2]), *traces("b", seeds=[0, 2])]
    found = analyze("dispersion", models, controls=Controls(untrained=[*control("a", 1, 50), *control("b", 1, 51)]))
    direct = {m: analyze("dispersion", [to_trace(full_run(seed=s))]).table["value"] for m, s in (("a", 50), ("b", 51))}
    for model in "ab":
        np.testing.assert_allclose(found.table.filter(model=model)["untrained"], direct[model])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"seed": -1}, "seed -1 is negative"), ({"draws": 0}, "0 bootstrap draws"), ({"normalisation": "x"}, "'rows' or")],
)
def test_bad_options_are_sentences(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        Options(**settings)


def test_control_passes_of_a_run_are_told_apart(tmp_path):
    for number, control in enumerate(["", "untrained", "null_query", None]):
        metadata = {"sample": "s", "control": control, "control_of": "m"}
        to_trace(full_run(seed=number), metadata=metadata).save(tmp_path / f"{number}.safetensors")
    to_trace(full_run(seed=9)).save(tmp_path / "loose")
    own, controls = split_controls(find_traces(tmp_path, progress="x"), untrained=[tmp_path / "loose"])
    assert [path.name for path in own.paths] == ["0.safetensors", "3.safetensors"] and own.progress == "x"
    assert [path.name for path in controls.untrained.paths] == ["loose", "1.safetensors"]
    assert [path.name for path in controls.null_query.paths] == ["2.safetensors"]
    with pytest.raises(UserError, match="only control passes"):
        split_controls(find_traces(tmp_path / "1.safetensors"))
    to_trace(full_run(), metadata={"control": "guess"}).save(tmp_path / "g.safetensors")
    with pytest.raises(UserError, match="'guess', which is not known"):
        split_controls(find_traces(tmp_path))


def test_unknown_analysis():
    with pytest.raises(UserError, match="There is no analysis 'nonsense': Known are drift, absorption"):
        analyze("nonsense", [])


def test_save_and_read_from_files(tmp_path):
    folder = tmp_path / "run" / "traces"
    folder.mkdir(parents=True)
    for number, trace in enumerate(traces()):
        trace.save(folder / f"{number}.safetensors", exact=True)
    files = find_traces(tmp_path / "run")
    assert len(files) == 4
    first = analyze("flow", files)
    again = analyze("flow", files)  # a second pass opens the files again
    assert first.table.equals(again.table)
    direct = analyze("flow", traces())
    np.testing.assert_allclose(first.table["value"], direct.table["value"], atol=1e-6)
    paths = first.save(tmp_path / "tables")
    assert [path.name for path in paths] == [
        f"{name}.parquet" for name in ("flow", "flow_steps", "flow_gold", "flow_contrast")
    ]
    assert pl.read_parquet(paths[0]).equals(first.table)
    assert len(find_traces(folder / "0.safetensors", folder)) == 5
    with pytest.raises(UserError, match="nothing at"):
        find_traces(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no trace"):
        find_traces(tmp_path / "tables")


ANCHORED = {
    "absorption": ("absorption", "absorption_depth"),
    "drift": ("drift", "drift_ends", "drift_states", "drift_curve"),
    "dispersion": ("dispersion",),
    "qk": ("qk",),
    "token_classes": ("token_classes",),
    "task_dependence": ("task_dependence",),
    "anchors": ("anchors_list",),
}


@pytest.mark.parametrize("name", ANCHORED)
def test_detector_and_normalisation_reach_every_table_of_anchors(name):
    """Early columns of a causal model stand out less among the rows that see them; all rows see all of an MDM's."""

    def found(kind, **options):
        result = analyze(name, traces(kind=kind), Options(**{"detector": "zscore(1)", "draws": 9} | options))
        return [result.tables[table] for table in ANCHORED[name]]

    plain, visible, other = found("arm"), found("arm", normalisation="visible"), found("arm", detector="top1")
    for table, one, two, three in zip(ANCHORED[name], plain, visible, other, strict=True):
        column = "position" if table == "anchors_list" else "value"
        assert one[column].to_list() != two[column].to_list(), table
        if table != "drift_states":  # the top position is of the context, too
            assert one[column].to_list() != three[column].to_list(), table
    for one, two in zip(found("mdm"), found("mdm", normalisation="visible"), strict=True):
        column = "position" if "position" in one.columns else "value"
        np.testing.assert_allclose(one[column].drop_nulls(), two[column].drop_nulls(), atol=1e-5)
