"""The tables of docs/findings.md's attention part, from the analyses' results: numbers, controls, verdicts by rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import polars as pl

from floatscope.analysis import Result

ARM, DREAM, LLADA = "twin-arm", "twin-dream", "twin-llada"
MDMS = (DREAM, LLADA)
MODELS = {
    ARM: "twin-arm",
    DREAM: "twin-dream",
    LLADA: "twin-llada",
    "twin-parent": "parent",
    "parent-full": "parent, full visibility",
}
Results = dict[str, Result]
Row = dict[str, object]


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


def with_controls(table: pl.DataFrame, cells: Sequence[tuple[str, Mapping[str, object]]], digits: int = 3) -> str:
    """A line per measure and model: value, untrained, uniform, random."""
    lines = []
    for title, where in cells:
        for model, name in MODELS.items():
            row = pick(table, model, **where)
            controls = [number(row[control], digits) for control in ("untrained", "uniform", "random")]
            lines.append([title, name, interval(row, digits), *controls])
    return markdown(["measure", "model", "value [95 %]", "untrained", "uniform", "random"], lines)


def by_depth(table: pl.DataFrame, cells: Sequence[tuple[str, Mapping[str, object]]], digits: int = 3) -> str:
    """A line per measure and model: shallow and deep third, and the contrast with its p and its controls."""
    lines = []
    for title, where in cells:
        for model, name in MODELS.items():
            shallow, deep, contrast = (
                pick(table, model, depth=d, **where) for d in ("shallow", "deep", "shallow - deep")
            )
            controls = [number(contrast[control], digits) for control in ("untrained", "uniform", "random")]
            ends = [number(row["value"], digits) for row in (shallow, deep)]
            lines.append([title, name, *ends, interval(contrast, digits), number(contrast["p"], 4), *controls])
    header = ["measure", "model", "shallow", "deep", "shallow - deep [95 %]", "p", "untrained", "uniform", "random"]
    return markdown(header, lines)


def drift_table(results: Results) -> str:
    titles = {
        "turnover": "turnover of anchors",
        "static_share": "share of static anchors",
        "top_shift": "top position moves, tokens a step",
        "direction": "direction (Spearman with step)",
    }
    cells = [(title, {"measure": name, "depth": "all"}) for name, title in titles.items()]
    return with_controls(results["drift"].tables["drift_depth"], cells)


def absorption_table(results: Results) -> str:
    cells = [
        (f"{name}, {rows} rows", {"set": name, "rows": rows, "depth": "all"})
        for name in ("bos", "detected", "top1")
        for rows in ("all", "answer")
    ]
    return with_controls(results["absorption"].tables["absorption_depth"], cells, digits=2)


def qk_table(results: Results) -> str:
    titles = {"qk": "q.k", "cos": "cos", "norm": "norms", "angle_part": "angle part", "norm_part": "norm part"}
    cells = [(title, {"measure": name}) for name, title in titles.items()]
    return by_depth(results["qk"].tables["qk_depth"], cells, digits=2)


def dispersion_table(results: Results) -> str:
    titles = {"anchors": "anchors", "effective_share": "exp(entropy) / columns", "top_share": "top position's share"}
    cells = [(title, {"measure": name}) for name, title in titles.items()]
    return by_depth(results["dispersion"].tables["dispersion_depth"], cells)


def heads_table(results: Results) -> str:
    tables = results["retrieval_heads"].tables
    lines = []
    for score in ("copy", "evidence", "query"):
        for model, name in MODELS.items():
            best = pick(tables["retrieval_heads_top"], model, score=score, rank=1)
            contrast = pick(tables["retrieval_heads_depth"], model, score=score, depth="shallow - deep")
            halves = pick(tables["retrieval_heads_stability"], model, score=score)
            controls = [number(best[control]) for control in ("untrained", "uniform", "random")]
            about = [f"{best['layer']}.{best['head']}", interval(best), *controls]
            lines.append([score, name, *about, interval(contrast), number(halves["pearson"], 2)])
    header = ["score", "model", "best head", "its score [95 %]", "untrained", "uniform", "random"]
    return markdown([*header, "all heads: shallow - deep", "halves agree, r"], lines)


def flow_table(results: Results) -> str:
    table = results["flow"].tables["flow_contrast"].filter(window="all")
    golds = ["any", *(f"doc {n}" for n in range(1, 6))]
    lines = []
    for model, name in MODELS.items():
        rows = [pick(table, model, gold=gold) for gold in golds]
        lines.append([name, "value", *(interval(row) for row in rows)])
        lines.append([name, "uniform", *(number(row["uniform"]) for row in rows)])
        if rows[0]["untrained"] is not None:
            lines.append([name, "untrained", *(number(row["untrained"]) for row in rows)])
    return markdown(["model", "", *(f"gold at {gold}" for gold in golds)], lines)


def classes_table(results: Results) -> str:
    table = results["token_classes"].tables["token_classes_test"]
    treatments = table["treatment"].unique(maintain_order=True).to_list()
    lines = []
    for contrast in table["contrast"].unique(maintain_order=True):
        for model, name in MODELS.items():
            rows = [pick(table, model, contrast=contrast, treatment=treatment) for treatment in treatments]
            cells = [f"{interval(row)}, p {number(row['p'], 4)}" for row in rows]
            lines.append([contrast, name, *cells, number(rows[0]["random"])])
    return markdown(["contrast", "model", *treatments, "random (apart)"], lines)


def tasks_table(results: Results) -> str:
    lines = []
    for profile in ("position", "region", "class"):
        for model in (ARM, *MDMS):
            row = pick(results["task_dependence"].table, model, profile=profile, depth="all")
            numbers = [number(row[name]) for name in ("value", "between", "within", "p", "untrained", "random")]
            lines.append([profile, MODELS[model], *numbers])
    return markdown(["profile", "model", "between - within", "between", "within", "p", "untrained", "random"], lines)


def compat_table(results: Results) -> str:
    columns = ["published", "exact", "difference", "uniform"]
    table = results["compat"].table.group_by("quirk", "model", maintain_order=True).agg(pl.col(columns).mean())
    lines = [
        [quirk, MODELS[model], *(number(pick(table, model, quirk=quirk)[name]) for name in columns)]
        for quirk in table["quirk"].unique(maintain_order=True)
        for model in (ARM, *MDMS)
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


def floats(results: Results, model: str) -> bool:
    drift = results["drift"].tables["drift_depth"].filter(depth="all", measure="turnover")
    row, arm = pick(drift, model), pick(drift, ARM)
    return above(row, arm["high"] if arm["high"] is not None else arm["value"], row["untrained"], row["uniform"])


def drifts_right(results: Results, model: str) -> bool:
    return above(pick(results["drift"].tables["drift_depth"], model, depth="all", measure="direction"))


def absorbs_less(results: Results, model: str, own: str = "detected", arm: str = "bos") -> bool:
    absorbed = results["absorption"].tables["absorption_depth"].filter(rows="all", depth="all")
    return below(pick(absorbed, model, set=own), pick(absorbed, ARM, set=arm))


def absorbs_less_as_published(results: Results, model: str) -> bool:
    return absorbs_less(results, model, own="top1")


def absorbs_less_like_with_like(results: Results, model: str) -> bool:
    return absorbs_less(results, model, arm="detected")


def angle_when_deep(results: Results, model: str) -> bool:
    table = results["qk"].tables["qk_depth"]
    deep = pick(table, model, measure="angle_part", depth="deep")
    norm = [pick(table, model, measure="norm_part", depth=depth) for depth in ("shallow", "shallow - deep")]
    return above(deep, deep["random"]) and all(above(row) for row in norm)


def shallow_structure(results: Results, model: str) -> bool:
    found = results["token_classes"].tables["token_classes_test"].filter(model=model)
    return all(above(row, row["random"]) for row in found.iter_rows(named=True))


def spread_then_sparse(results: Results, model: str) -> bool:
    spread = results["dispersion"].tables["dispersion_depth"].filter(depth="shallow - deep")
    return all(above(pick(spread, model, measure=name)) for name in ("anchors", "effective_share"))


def retrieves(results: Results, model: str) -> bool:
    heads = results["retrieval_heads"].tables
    best = pick(heads["retrieval_heads_top"], model, score="evidence", rank=1)
    halves = pick(heads["retrieval_heads_stability"], model, score="evidence")["pearson"]
    agree = isinstance(halves, int | float) and halves > 0.8
    return agree and above(best, best["untrained"], best["uniform"], best["random"])


def follows_gold(results: Results, model: str) -> bool:
    row = pick(results["flow"].tables["flow_contrast"], model, window="all", gold="any")
    return above(row, row["uniform"], row["untrained"])


def differs_by_task(results: Results, model: str) -> bool:
    tasks = results["task_dependence"].table.filter(depth="all")
    found = [pick(tasks, model, profile=name)["p"] for name in ("position", "region", "class")]
    return all(isinstance(p, int | float) and p < 0.05 for p in found)


RULES: tuple[tuple[str, str, Callable[[Results, str], bool]], ...] = (
    ("anchors float", "turnover above the ARM twin's, untrained and uniform", floats),
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
"""A claim of the paper, when it is called present (whole 95 % intervals), and the rule."""


def verdicts(results: Results) -> str:
    """Present or absent by rule, for each MDM twin."""
    words = {True: "present", False: "absent"}
    lines = [[name, rule, *(words[holds(results, model)] for model in MDMS)] for name, rule, holds in RULES]
    bos = pick(results["absorption"].tables["absorption_depth"], ARM, rows="all", depth="all", set="bos")
    sink = words[above(bos, bos["uniform"], bos["untrained"])]
    head = f"The ARM twin's sink on bos, above uniform causal attention and the untrained twin: **{sink}**.\n\n"
    return head + markdown(["phenomenon", "present if (95 % intervals)", *(MODELS[m] for m in MDMS)], lines)


def render(results: Results, finished: pl.DataFrame, n: int) -> str:
    """Everything between the markers."""
    samples = f"Samples a model: {5 * n} rag questions ({n} for each gold place), {2 * n} binding, {2 * n} two-hop."
    forward = [[MODELS[m], *(number(v) for v in rest)] for m, *rest in finished.iter_rows()]
    parts = {
        "Verdicts": verdicts(results),
        "Floating and fixed anchors (`analyze drift`, mean over layers)": drift_table(results),
        "Absorption in percent (`analyze absorption`, mean over layers)": absorption_table(results),
        "QK geometry in standard deviations (`analyze qk`)": qk_table(results),
        "Retrieval heads (`analyze retrieval_heads`, layer.head)": heads_table(results),
        "Flow to the gold document minus the mean of the others (`analyze flow`)": flow_table(results),
        "Shallow structural, deep lexical (`analyze token_classes`)": classes_table(results),
        "Dispersion (`analyze dispersion`)": dispersion_table(results),
        "Task dependence (`analyze task_dependence`)": tasks_table(results),
        "Compat: what the published quirks change (`analyze compat`, mean over layers)": compat_table(results),
        "Compat: the last step stands for the finished text (top position, %)": markdown(
            ["model", "last step", "finished text", "largest difference in a layer"], forward
        ),
    }
    return "\n\n".join([samples, *(f"### {title}\n\n{text}" for title, text in parts.items())])
