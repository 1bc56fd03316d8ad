"""The tables of docs/findings.md's attention part, from the analyses' results: numbers, controls, verdicts by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from floatscope.analysis import Result

Row = dict[str, object]


@dataclass(frozen=True)
class Cast:
    """The models that the tables are about, and their parts in them."""

    arm: str
    """The ARM that the MDMs are compared with."""
    mdms: tuple[str, ...]
    names: Mapping[str, str]
    """Every model with a line of its own, in order, and what the tables call it."""
    noun: str
    """What the trained ones are: twin, fork."""
    parent: str = ""
    """The traced model that all were before training; empty where untrained ones have random weights."""


@dataclass(frozen=True)
class Findings:
    """What was measured of a cast: the analyses' results by name, and the MDMs' forward over the finished text."""

    cast: Cast
    results: Mapping[str, Result]
    finished: pl.DataFrame
    samples: str
    """A sentence: how many of what."""

    def table(self, name: str, table: str = "") -> pl.DataFrame:
        """The main table of an analysis, or another one of it."""
        return self.results[name].tables[table or name]

    @property
    def trained(self) -> tuple[str, ...]:
        """The ARM and the MDMs."""
        return self.cast.arm, *self.cast.mdms


def number(value: object, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "–"


def interval(row: Row, digits: int = 3) -> str:
    """Value with its 95 % interval."""
    if row["low"] is None:
        return number(row["value"], digits)
    return f"{number(row['value'], digits)} [{number(row['low'], digits)}, {number(row['high'], digits)}]"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pick(table: pl.DataFrame, model: str, **where: object) -> Row:
    """The one row of a model; a row of nothing where there is none."""
    found = table.filter(pl.col("model") == model, **where)
    return found.row(0, named=True) if found.height else {name: None for name in table.columns}


def with_controls(
    names: Mapping[str, str], table: pl.DataFrame, cells: Sequence[tuple[str, Mapping[str, object]]], digits: int = 3
) -> str:
    """A line per measure and model: value, untrained, uniform, random."""
    lines = []
    for title, where in cells:
        for model, name in names.items():
            row = pick(table, model, **where)
            controls = [number(row[control], digits) for control in ("untrained", "uniform", "random")]
            lines.append([title, name, interval(row, digits), *controls])
    return markdown(["measure", "model", "value [95 %]", "untrained", "uniform", "random"], lines)


def by_depth(
    names: Mapping[str, str], table: pl.DataFrame, cells: Sequence[tuple[str, Mapping[str, object]]], digits: int = 3
) -> str:
    """A line per measure and model: shallow and deep third, and the contrast with its p and its controls."""
    lines = []
    for title, where in cells:
        for model, name in names.items():
            shallow, deep, contrast = (
                pick(table, model, depth=d, **where) for d in ("shallow", "deep", "shallow - deep")
            )
            controls = [number(contrast[control], digits) for control in ("untrained", "uniform", "random")]
            ends = [number(row["value"], digits) for row in (shallow, deep)]
            lines.append([title, name, *ends, interval(contrast, digits), number(contrast["p"], 4), *controls])
    header = ["measure", "model", "shallow", "deep", "shallow - deep [95 %]", "p", "untrained", "uniform", "random"]
    return markdown(header, lines)


def drift_table(found: Findings) -> str:
    titles = {
        "turnover": "turnover of anchors",
        "static_share": "share of static anchors",
        "top_shift": "top position moves, tokens a step",
        "direction": "direction (Spearman with step)",
    }
    cells = [(title, {"measure": name, "depth": "all"}) for name, title in titles.items()]
    return with_controls(found.cast.names, found.table("drift", "drift_depth"), cells)


def absorption_table(found: Findings) -> str:
    cells = [
        (f"{name}, {rows} rows", {"set": name, "rows": rows, "depth": "all"})
        for name in ("bos", "detected", "top1")
        for rows in ("all", "answer")
    ]
    return with_controls(found.cast.names, found.table("absorption", "absorption_depth"), cells, digits=2)


def qk_table(found: Findings) -> str:
    titles = {"qk": "q.k", "cos": "cos", "norm": "norms", "angle_part": "angle part", "norm_part": "norm part"}
    cells = [(title, {"measure": name}) for name, title in titles.items()]
    return by_depth(found.cast.names, found.table("qk", "qk_depth"), cells, digits=2)


def dispersion_table(found: Findings) -> str:
    titles = {"anchors": "anchors", "effective_share": "exp(entropy) / columns", "top_share": "top position's share"}
    cells = [(title, {"measure": name}) for name, title in titles.items()]
    return by_depth(found.cast.names, found.table("dispersion", "dispersion_depth"), cells)


def heads_table(found: Findings) -> str:
    tables = found.results["retrieval_heads"].tables
    lines = []
    for score in ("copy", "evidence", "query"):
        for model, name in found.cast.names.items():
            best = pick(tables["retrieval_heads_top"], model, score=score, rank=1)
            contrast = pick(tables["retrieval_heads_depth"], model, score=score, depth="shallow - deep")
            halves = pick(tables["retrieval_heads_stability"], model, score=score)
            controls = [number(best[control]) for control in ("untrained", "uniform", "random")]
            place = "–" if best["layer"] is None else f"{best['layer']}.{best['head']}"
            about = [place, interval(best), *controls]
            lines.append([score, name, *about, interval(contrast), number(halves["pearson"], 2)])
    header = ["score", "model", "best head", "its score [95 %]", "untrained", "uniform", "random"]
    return markdown([*header, "all heads: shallow - deep", "halves agree, r"], lines)


def flow_table(found: Findings) -> str:
    table = found.table("flow", "flow_contrast").filter(window="all")
    golds = ["any", *(f"doc {n}" for n in range(1, 6))]
    lines = []
    for model, name in found.cast.names.items():
        rows = [pick(table, model, gold=gold) for gold in golds]
        lines.append([name, "value", *(interval(row) for row in rows)])
        lines.append([name, "uniform", *(number(row["uniform"]) for row in rows)])
        if rows[0]["untrained"] is not None:
            lines.append([name, "untrained", *(number(row["untrained"]) for row in rows)])
    return markdown(["model", "", *(f"gold at {gold}" for gold in golds)], lines)


def classes_table(found: Findings) -> str:
    table = found.table("token_classes", "token_classes_test")
    treatments = table["treatment"].unique(maintain_order=True).to_list()
    lines = []
    for contrast in table["contrast"].unique(maintain_order=True):
        for model, name in found.cast.names.items():
            rows = [pick(table, model, contrast=contrast, treatment=treatment) for treatment in treatments]
            cells = [f"{interval(row)}, p {number(row['p'], 4)}" for row in rows]
            lines.append([contrast, name, *cells, number(rows[0]["random"])])
    return markdown(["contrast", "model", *treatments, "random (apart)"], lines)


def tasks_table(found: Findings) -> str:
    lines = []
    for profile in ("position", "region", "class"):
        for model in found.trained:
            row = pick(found.table("task_dependence"), model, profile=profile, depth="all")
            numbers = [number(row[name]) for name in ("value", "between", "within", "p", "untrained", "random")]
            lines.append([profile, found.cast.names[model], *numbers])
    return markdown(["profile", "model", "between - within", "between", "within", "p", "untrained", "random"], lines)


def compat_table(found: Findings) -> str:
    columns = ["published", "exact", "difference", "uniform"]
    table = found.table("compat").group_by("quirk", "model", maintain_order=True).agg(pl.col(columns).mean())
    lines = [
        [quirk, found.cast.names[model], *(number(pick(table, model, quirk=quirk)[name]) for name in columns)]
        for quirk in table["quirk"].unique(maintain_order=True)
        for model in found.trained
    ]
    return markdown(["quirk", "model", "published", "exact", "difference", "published, uniform attention"], lines)


def above(row: Row, *others: object) -> bool:
    """Whether the whole interval lies above 0 and above every known control."""
    low = row["low"]
    known = [other for other in others if isinstance(other, int | float)]
    return isinstance(low, int | float) and low > max([0.0, *known])


def below(first: Row, second: Row) -> bool:
    """Whether the first interval lies wholly below the second."""
    high, low = first["high"], second["low"]
    return isinstance(high, int | float) and isinstance(low, int | float) and high < low


def floats(found: Findings, model: str) -> bool:
    drift = found.table("drift", "drift_depth").filter(depth="all", measure="turnover")
    row, arm = pick(drift, model), pick(drift, found.cast.arm)
    return above(row, arm["high"] if arm["high"] is not None else arm["value"], row["untrained"], row["uniform"])


def drifts_right(found: Findings, model: str) -> bool:
    return above(pick(found.table("drift", "drift_depth"), model, depth="all", measure="direction"))


def absorbs_less(found: Findings, model: str, own: str = "detected", arm: str = "bos") -> bool:
    absorbed = found.table("absorption", "absorption_depth").filter(rows="all", depth="all")
    return below(pick(absorbed, model, set=own), pick(absorbed, found.cast.arm, set=arm))


def absorbs_less_as_published(found: Findings, model: str) -> bool:
    return absorbs_less(found, model, own="top1")


def absorbs_less_like_with_like(found: Findings, model: str) -> bool:
    return absorbs_less(found, model, arm="detected")


def angle_when_deep(found: Findings, model: str) -> bool:
    table = found.table("qk", "qk_depth")
    deep = pick(table, model, measure="angle_part", depth="deep")
    norm = [pick(table, model, measure="norm_part", depth=depth) for depth in ("shallow", "shallow - deep")]
    return above(deep, deep["random"]) and all(above(row) for row in norm)


def shallow_structure(found: Findings, model: str) -> bool:
    tests = found.table("token_classes", "token_classes_test").filter(model=model)
    return all(above(row, row["random"]) for row in tests.iter_rows(named=True))


def spread_then_sparse(found: Findings, model: str) -> bool:
    spread = found.table("dispersion", "dispersion_depth").filter(depth="shallow - deep")
    return all(above(pick(spread, model, measure=name)) for name in ("anchors", "effective_share"))


def retrieves(found: Findings, model: str) -> bool:
    heads = found.results["retrieval_heads"].tables
    best = pick(heads["retrieval_heads_top"], model, score="evidence", rank=1)
    halves = pick(heads["retrieval_heads_stability"], model, score="evidence")["pearson"]
    agree = isinstance(halves, int | float) and halves > 0.8
    return agree and above(best, best["untrained"], best["uniform"], best["random"])


def follows_gold(found: Findings, model: str) -> bool:
    row = pick(found.table("flow", "flow_contrast"), model, window="all", gold="any")
    return above(row, row["uniform"], row["untrained"])


def differs_by_task(found: Findings, model: str) -> bool | None:
    if "task_dependence" not in found.results:
        return None
    tasks = found.table("task_dependence").filter(depth="all")
    chances = [pick(tasks, model, profile=name)["p"] for name in ("position", "region", "class")]
    return all(isinstance(p, int | float) and p < 0.05 for p in chances)


RULES: tuple[tuple[str, str, Callable[[Findings, str], bool | None]], ...] = (
    ("anchors float", "turnover above the ARM {noun}'s, untrained and uniform", floats),
    ("anchors drift to the right", "direction above 0", drifts_right),
    ("absorption weaker than an ARM's sink", "MDM on detected anchors below ARM on bos", absorbs_less),
    ("the same, as published", "MDM on its top position below ARM on bos", absorbs_less_as_published),
    ("the same, like with like", "MDM below ARM, both on detected anchors", absorbs_less_like_with_like),
    (
        "angle and norm in shallow layers, angle in deep ones",
        "deep angle part above random; norm part above 0 when shallow, and more than deep",
        angle_when_deep,
    ),
    (
        "shallow structural, deep lexical",
        "both contrasts above 0 and random, in all three treatments",
        shallow_structure,
    ),
    ("shallow spread out, deep sparse", "anchors and exp(entropy): shallow - deep above 0", spread_then_sparse),
    ("retrieval heads", "best head's evidence score above all controls, halves agree (r > 0.8)", retrieves),
    ("flow follows the gold document", "contrast above 0, uniform and untrained", follows_gold),
    ("anchors depend on the task", "p < 0.05 for position, region and class", differs_by_task),
)
"""A claim of the paper, when it is called present (whole 95 % intervals), and the rule; None: it was not measured."""


def verdicts(found: Findings) -> str:
    """Present or absent by rule, for each MDM."""
    words = {True: "present", False: "absent", None: "not measured"}
    names, mdms = found.cast.names, found.cast.mdms
    lines = [
        [name, rule.format(noun=found.cast.noun), *(words[holds(found, model)] for model in mdms)]
        for name, rule, holds in RULES
    ]
    table = markdown(["phenomenon", "present if (95 % intervals)", *(names[m] for m in mdms)], lines)
    return f"{sink_sentence(found)}\n\n{table}"


def sink_sentence(found: Findings) -> str:
    """Whether the ARM has its sink; a fork may have it from its parent, so that is told apart."""
    cast, words = found.cast, {True: "present", False: "absent"}
    bos = pick(found.table("absorption", "absorption_depth"), cast.arm, rows="all", depth="all", set="bos")
    sink = words[above(bos, bos["uniform"], bos["untrained"])]
    if not cast.parent:
        return f"The ARM twin's sink on bos, above uniform causal attention and the untrained twin: **{sink}**."
    alone = words[above(bos, bos["uniform"])]
    told = f"The sink on bos of the ARM ({cast.names[cast.arm]}), above uniform causal attention: **{alone}**"
    return f"{told}; above the sink that its parent has, too: **{sink}**."


def sink_table(found: Findings) -> str:
    """Attention at the first token by depth, before and after each change, and what each change did."""
    table, steps = found.table("sink"), found.table("sink", "sink_steps")
    layers = table["layers"].unique(maintain_order=True).to_list()
    cast, lines, even = found.cast, [], {}
    for model in (cast.parent, *(f"{mdm}-untrained" for mdm in cast.mdms), *cast.mdms, cast.arm):
        rows = [pick(table, model, layers=name) for name in layers]
        visibility = str(rows[0]["visibility"])
        lines.append([sink_name(cast, model), visibility, *(interval(row, 2) for row in rows)])
        even.setdefault(visibility, ["uniform attention", visibility, *(number(row["uniform"], 2) for row in rows)])
    changes = [
        [row["change"], *(sink_name(cast, row[end]) for end in ("start", "end")), interval(row, 2)]
        for row in steps.iter_rows(named=True)
    ]
    return "\n\n".join(
        [
            markdown(["model", "visibility", *layers], [*lines, *even.values()]),
            f"What each change does to the last column, in points, paired by sample ({layers[-1]}):",
            markdown(["change", "from", "to", "difference [95 %]"], changes),
        ]
    )


def sink_name(cast: Cast, model: str) -> str:
    """As in the other tables; an untrained fork is its parent with the mask removed."""
    if model in cast.names:
        return cast.names[model]
    return f"parent, mask removed ({model})"


def render(found: Findings) -> str:
    """Everything between the markers."""
    forward = [[found.cast.names[m], *(number(v) for v in rest)] for m, *rest in found.finished.iter_rows()]
    parts = {
        "Verdicts": verdicts(found),
        "No sink: visibility or training? (first token, % of attention)": sink_table(found)
        if found.cast.parent
        else "",
        "Floating and fixed anchors (`analyze drift`, mean over layers)": drift_table(found),
        "Absorption in percent (`analyze absorption`, mean over layers)": absorption_table(found),
        "QK geometry in standard deviations (`analyze qk`)": qk_table(found),
        "Retrieval heads (`analyze retrieval_heads`, layer.head)": heads_table(found),
        "Flow to the gold document minus the mean of the others (`analyze flow`)": flow_table(found),
        "Shallow structural, deep lexical (`analyze token_classes`)": classes_table(found),
        "Dispersion (`analyze dispersion`)": dispersion_table(found),
        "Task dependence (`analyze task_dependence`)": tasks_table(found) if "task_dependence" in found.results else "",
        "Compat: what the published quirks change (`analyze compat`, mean over layers)": compat_table(found)
        if "compat" in found.results
        else "",
        "Compat: the last step stands for the finished text (top position, %)": markdown(
            ["model", "last step", "finished text", "largest difference in a layer"], forward
        ),
    }
    return "\n\n".join([found.samples, *(f"### {title}\n\n{text}" for title, text in parts.items() if text)])
