"""The answer in a few sentences, written from the numbers of a run whatever they say: scores, gains, attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from floatscope.analysis.results import Result

Row = Mapping[str, Any]


def summary_sentences(scores: pl.DataFrame, results: Mapping[str, Result], kinds: Mapping[str, str]) -> tuple[str, ...]:
    """Sentences for the top of the page; one whose numbers are missing is left out.

    scores: the run's (`Run.scores`). results: analyses by name. kinds: mdm or arm by model.
    """
    own = scores.filter(stressor="documents", metric="accuracy")
    tasks = own["task"].unique(maintain_order=True).to_list()
    task = None if None in tasks or not tasks else tasks[0]  # the average over tasks, or the only one
    most = None if own["documents"].null_count() else own["documents"].max()  # None: each sample's own
    documents = pl.col("documents")
    main = own.filter(pl.col("task").eq_missing(task), (documents == 0) | documents.eq_missing(most))
    verdicts = results["drift"].tables.get("drift_verdicts") if "drift" in results else None
    far = () if verdicts is None else (_floating(verdicts), _direction(verdicts))
    sentences = (
        _meaning(main, verdicts, kinds),
        _scores(scores, main, kinds),
        _gains(main, kinds),
        *far,
        _attention(results, kinds, not any(far)),
    )
    return tuple(sentence for sentence in sentences if sentence)


def _meaning(main: pl.DataFrame, verdicts: pl.DataFrame | None, kinds: Mapping[str, str]) -> str:
    """What the numbers below mean: whom documents help for sure, and in whom attention floats."""
    gains = _known(main.filter(statistic="gain"), kinds)
    helped = [row["model"] for row in gains if row["low"] > 0]
    parts = []
    if gains and len(helped) == len(gains):
        parts.append("documents help every model" if len(gains) > 1 else f"documents help {helped[0]}")
    elif gains:
        told = f"documents help {_joined(helped)} for sure" if helped else "documents help no model for sure"
        parts.append(told)
    if verdicts is not None:
        floats = _floats(verdicts).group_by("model", maintain_order=True)
        does = [str(model) for (model,), part in floats if set(part["verdict"]) == {"floating"}]
        if does:
            when = "it denoises" if len(does) == 1 else "they denoise"
            parts.append(f"attention floats in {_joined(does)} while {when}")
    text = ", and ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _scores(scores: pl.DataFrame, main: pl.DataFrame, kinds: Mapping[str, str]) -> str:
    """Who is right how often, with and without documents."""
    own = _known(main.filter(statistic="score"), kinds)
    having = {row["model"]: row for row in own if row["documents"] != 0}
    lacking = {row["model"]: row for row in own if row["documents"] == 0}
    if not having:
        return ""
    (most,) = {row["documents"] for row in having.values()}
    samples = {row["n"] for row in having.values()}
    questions = f" of {samples.pop()} questions" if len(samples) == 1 else ""
    (first, best), *others = having.items()
    parts = [f"{first} answers {_percent(best)}{questions} right"]
    parts += [f"{model} {_percent(row)}" for model, row in others]
    without = [f"{100 * lacking[model]['value']:.0f} %" for model in having if model in lacking]
    same = len(set(without)) == 1
    end = f"; without documents {without[0] if same else _joined(without)}" if without else ""
    tasks = scores.filter(stressor="documents")["task"].drop_nulls().n_unique()
    over = f", averaged over {tasks} tasks," if tasks > 1 else ""
    return f"With {'their own' if most is None else most} documents{over} {_joined(parts)}{end}."


def _gains(main: pl.DataFrame, kinds: Mapping[str, str]) -> str:
    """What documents add, and whether MDMs gain more than ARMs."""
    gains = _known(main.filter(statistic="gain"), kinds)
    if not gains:
        return ""
    parts = [f"{_points(row['value'])} points to {row['model']}" for row in gains]
    told = []
    for row in main.filter(statistic="difference").drop_nulls("value").iter_rows(named=True):
        # an MDM against an ARM; without kinds every pair is of interest
        if not kinds or {kinds.get(row["model"]), kinds.get(row["beside"])} == {"mdm", "arm"}:
            told.append(_verdict(row, kinds))
    return f"Documents add {_joined(parts)}{''.join(f'; {one}' for one in told)}."


def _known(rows: pl.DataFrame, kinds: Mapping[str, str]) -> list[Row]:
    """The rows that have a value, MDMs first."""
    known = rows.drop_nulls("value").iter_rows(named=True)
    return sorted(known, key=lambda row: kinds.get(row["model"]) == "arm")


def _verdict(row: Row, kinds: Mapping[str, str]) -> str:
    """The MDM is named first, whatever the order of the pair."""
    first, second = row["model"], row["beside"]
    if kinds.get(first) == "arm":
        first, second = second, first
        row = {"value": -row["value"], "low": -row["high"], "high": -row["low"]}
    words = _interval(row, _points)
    if row["low"] > 0:
        return f"{first} gains more than {second}, by {words}"
    if row["high"] < 0:
        return f"{first} gains less than {second}, by {words}"
    return f"between {first} and {second} no difference can be told, {words}"


_FLOATING = {"floating": "it floats", "absent": "it does not float", "too few samples": "too few samples to tell"}


def _floating(verdicts: pl.DataFrame) -> str:
    """Whether an MDM exchanges more of its anchors than the ARM beside it, from the first step to the last."""
    told = []
    for row in _floats(verdicts).iter_rows(named=True):
        words = _FLOATING.get(row["verdict"], "too close to tell")
        told.append(f"{_interval(row, _points)} points more in {row['model']} than in {row['beside']} ({words})")
    return f"From the first step to the last, the share of anchors that change is {_joined(told)}." if told else ""


def _floats(verdicts: pl.DataFrame) -> pl.DataFrame:
    """The verdict on floating for each MDM beside each ARM.

    Of several tasks, one that was run in both layouts tells it: its answers are written, not just found.
    """
    known = verdicts.filter(claim="floating").drop_nulls(["beside", "low"])
    mirrored = pl.col("task").is_in(verdicts.filter(side="left")["task"].implode())
    known = known.sort(mirrored, descending=True, maintain_order=True)
    return known.unique(["model", "beside"], keep="first", maintain_order=True)


def _direction(verdicts: pl.DataFrame) -> str:
    """Where the most attended position goes with the answer at the right and at the left; one layout tells nothing."""
    told: dict[str, str] = {}
    for (model, *_), part in verdicts.drop_nulls("low").group_by(["model", "task"], maintain_order=True):
        ways = part.filter(claim="rightward").unique("side", keep="first").iter_rows(named=True)
        sides = {row["side"]: _interval(row, lambda value: f"{value:+.2f}".replace("-", "−")) for row in ways}
        if {"right", "left"} <= set(sides):
            found = set(part.filter(pl.col("claim") != "floating")["verdict"])
            words = {"rightward": "to the right", "towards": "towards the answer"}
            where = next((words[verdict] for verdict in words if verdict in found), "neither way for sure")
            numbers = f"{sides['right']} with the answer at the right, {sides['left']} with it at the left"
            told.setdefault(str(model), f"{where} in {model} ({numbers})")
    return f"The most attended position moves {_joined([*told.values()])}; Spearman with the step." if told else ""


def _attention(results: Mapping[str, Result], kinds: Mapping[str, str], steps: bool) -> str:
    """How much anchors move from step to step, unless more is told of it, and what the first token absorbs."""
    parts = []
    if steps and "drift" in results:
        turnover = results["drift"].of().table.filter(measure="turnover")
        if moved := _means(turnover, kinds, "untrained"):
            parts.append(f"from step to step the share of anchors that change is {_joined(moved)}")
    if "absorption" in results:
        first = results["absorption"].of().table.filter(set="bos", rows="all")
        if absorbed := _means(first, kinds, "uniform", scale=1):
            parts.append(f"the first token receives {_joined(absorbed)} of all attention")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _means(table: pl.DataFrame, kinds: Mapping[str, str], control: str, scale: float = 100) -> list[str]:
    """ "33 % in X (untrained 80 %)" for each model, mean over layers, MDMs first."""
    found = []
    for model in sorted(table["model"].unique(maintain_order=True), key=lambda name: kinds.get(name) == "arm"):
        part = table.filter(model=model)
        value, beside = part["value"].mean(), part[control].mean()
        if isinstance(value, float):
            told = f" ({control} {scale * beside:.1f} %)" if isinstance(beside, float) else ""
            found.append(f"{scale * value:.1f} % in {model}{told}")
    return found


def _percent(row: Row) -> str:
    return f"{100 * row['value']:.0f} % [{100 * row['low']:.0f}, {100 * row['high']:.0f}]"


def _points(value: float) -> str:
    """Whole percentage points with their sign; 0 has none."""
    points = round(100 * value)
    return f"{points:+d}".replace("-", "−") if points else "0"


def _interval(row: Row, shown: Callable[[float], str]) -> str:
    """+20 [+5, +30]"""
    return f"{shown(row['value'])} [{shown(row['low'])}, {shown(row['high'])}]"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
