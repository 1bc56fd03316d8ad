"""The answer in three sentences, written from the numbers of a run whatever they say: scores, gains, attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from floatscope.analysis.results import Result
from floatscope.qa.statistics import Difference
from floatscope.study.tables import AVERAGE

if TYPE_CHECKING:
    import polars as pl

GAIN = "gain of "


def summary_sentences(
    headline: pl.DataFrame,
    comparisons: Iterable[Sequence[Any]],
    results: Mapping[str, Result],
    kinds: Mapping[str, str],
) -> tuple[str, ...]:
    """Sentences for the top of the page; one whose numbers are missing is left out.

    headline: Table 1 in long form. comparisons: rows of the table of that name. kinds: mdm or arm by model.
    """
    sentences = (_scores(headline, kinds), _gains(headline, comparisons, kinds), _attention(results, kinds))
    return tuple(sentence for sentence in sentences if sentence)


def _scores(headline: pl.DataFrame, kinds: Mapping[str, str]) -> str:
    """Who is right how often, with and without documents."""
    table, most = _main(headline)
    if most is None:
        return ""
    having, lacking = _values(table, most, kinds), _values(table, "0", kinds)
    if not having:
        return ""
    samples = {row[3] for row in having.values()}
    questions = f" of {samples.pop()} questions" if len(samples) == 1 else ""
    parts = [f"{model} {_percent(*row)}" for model, row in having.items()]
    parts[0] = f"{next(iter(having))} answers {_percent(*next(iter(having.values())))}{questions} right"
    without = [f"{100 * lacking[model][0]:.0f} %" for model in having if model in lacking]
    same = len(set(without)) == 1
    end = f"; without documents {without[0] if same else _joined(without)}" if without else ""
    tasks = headline["task"].n_unique() - 1
    over = f", averaged over {tasks} tasks," if table["task"][0] == AVERAGE else ""
    return f"With {most} documents{over} {_joined(parts)}{end}."


def _gains(headline: pl.DataFrame, comparisons: Iterable[Sequence[Any]], kinds: Mapping[str, str]) -> str:
    """What documents add, and whether MDMs gain more than ARMs."""
    table, most = _main(headline)
    if most is None:
        return ""
    gains = _values(table, f"{GAIN}{most}", kinds)
    if not gains:
        return ""
    task = table["task"][0]
    parts = [f"{_points(row[0])} points to {model}" for model, row in gains.items()]
    told = [
        _verdict(first, second, found, kinds)
        for first, second, label, count, found, *_ in comparisons
        if label == task and count == most and isinstance(found, Difference) and _apart(first, second, kinds)
    ]
    said = f"; {'; '.join(told)}" if told else ""
    return f"Documents add {_joined(parts)}{said}."


def _apart(first: str, second: str, kinds: Mapping[str, str]) -> bool:
    """Whether a pair is an MDM and an ARM; without kinds every pair is of interest."""
    return not kinds or {kinds.get(first), kinds.get(second)} == {"mdm", "arm"}


def _verdict(first: str, second: str, found: Difference, kinds: Mapping[str, str]) -> str:
    """The MDM is named first, whatever the order of the pair."""
    turned = kinds.get(first) == "arm"
    if turned:
        first, second = second, first
    interval = found.interval
    sign = -1 if turned else 1
    value, (low, high) = sign * interval.estimate, sorted((sign * interval.low, sign * interval.high))
    words = f"{_points(value)} [{_points(low)}, {_points(high)}]"
    if low > 0:
        return f"{first} gains more than {second}, by {words}"
    if high < 0:
        return f"{first} gains less than {second}, by {words}"
    return f"between {first} and {second} no difference can be told, {words}"


def _attention(results: Mapping[str, Result], kinds: Mapping[str, str]) -> str:
    """How much anchors move, and what the first token absorbs, each with its control."""
    parts = []
    if "drift" in results:
        turnover = results["drift"].table.filter(measure="turnover")
        moved = _means(turnover, kinds, "untrained")
        if moved:
            parts.append(f"From step to step the share of anchors that change is {_joined(moved)}")
    if "absorption" in results:
        first = results["absorption"].table.filter(set="bos", rows="all")
        absorbed = _means(first, kinds, "uniform", scale=1)
        if absorbed:
            start = "the first token receives" if parts else "The first token receives"
            parts.append(f"{start} {_joined(absorbed)} of all attention")
    return f"{'; '.join(parts)}." if parts else ""


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


def _main(headline: pl.DataFrame) -> tuple[pl.DataFrame, str | None]:
    """Accuracy of the average over tasks, or of the only task; and the largest number of documents."""
    accuracy = headline.filter(metric="Acc")
    tasks = accuracy["task"].unique(maintain_order=True).to_list()
    counts = [int(label) for label in accuracy["documents"].unique() if label.isdigit() and int(label) > 0]
    if not tasks or not counts:
        return accuracy, None
    return accuracy.filter(task=AVERAGE if AVERAGE in tasks else tasks[0]), str(max(counts))


def _values(
    table: pl.DataFrame, documents: str, kinds: Mapping[str, str]
) -> dict[str, tuple[float, float, float, int]]:
    """value, low, high, samples of every model (guesses apart), MDMs first."""
    rows = table.filter(documents=documents).drop_nulls("value").select("model", "value", "low", "high", "samples")
    known = sorted(rows.iter_rows(), key=lambda row: kinds.get(row[0]) == "arm")
    return {model: (value, low, high, n) for model, value, low, high, n in known if not model.startswith("guess: ")}


def _percent(value: float, low: float, high: float, samples: int) -> str:
    return f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _points(value: float) -> str:
    """Whole percentage points with their sign; 0 has none."""
    points = round(100 * value)
    return f"{points:+d}".replace("-", "−") if points else "0"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
