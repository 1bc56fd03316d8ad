"""Small models made of full attention matrices, and the trace arrays derived from them by plain loops.

The second computation of the tests: nothing here knows how the probe or the analyses arrive at their numbers.
"""

from dataclasses import dataclass, replace

import numpy as np

from floatscope.canvas import Region, regions_from_labels
from floatscope.traces import Trace

LABELS = (
    "bos",
    "scaffold",
    "query",
    "query",
    "scaffold",
    "doc 1",
    "doc 1",
    "scaffold",
    "doc 2",
    "doc 2",
    "doc 2",
)
TEXTS = ("<s>", "Question", " who", " rules", "\n", " Paris", " 42", ".", " the", " king", " Ann")


@dataclass
class FullRun:
    """attention[step]: [layer, head, row, token]; rows of an ARM grow by one a step."""

    kind: str
    visibility: str
    logits: str
    labels: tuple[str, ...]
    prompt_length: int
    commit_step: np.ndarray
    attention: list[np.ndarray]
    queries: list[np.ndarray]
    keys: list[np.ndarray]
    values: list[np.ndarray]
    marks: dict[str, np.ndarray]
    canvas: np.ndarray
    texts: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return len(self.canvas)

    @property
    def regions(self) -> tuple[Region, ...]:
        return regions_from_labels(self.labels)


def visible_pairs(visibility: str, tokens: int) -> np.ndarray:
    """[row, token] who sees whom."""
    row, column = np.indices((tokens, tokens))
    if visibility == "bidirectional":
        return np.ones((tokens, tokens), bool)
    if visibility == "causal":
        return column <= row
    block = int(visibility.removeprefix("block_causal(").removesuffix(")"))
    return column // block <= row // block


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def full_run(
    seed: int = 0,
    kind: str = "mdm",
    visibility: str | None = None,
    logits: str | None = None,
    steps: int = 4,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    answer: int = 4,
    dimension: int = 6,
    prompt: tuple[str, ...] = LABELS,
    texts: tuple[str, ...] | None = TEXTS,
    sharpness: float = 2.0,
) -> FullRun:
    rng = np.random.default_rng(seed)
    visibility = visibility or ("causal" if kind == "arm" else "bidirectional")
    logits = logits or ("next" if kind == "arm" else "same")
    labels = (*prompt, *["answer"] * answer)
    tokens, length = len(labels), len(prompt)
    steps = answer if kind == "arm" else steps
    commit = np.arange(answer) if kind == "arm" else rng.permutation(np.arange(answer) * steps // answer)
    seen = visible_pairs(visibility, tokens)
    run = FullRun(
        kind, visibility, logits, labels, length, commit, [], [], [], [],
        {"evidence": np.array([9, 10]), "gold_answer": np.array([10])} if prompt == LABELS else {},
        rng.integers(0, 50, tokens),
        (*(texts if texts is not None else [f"t{i}" for i in range(length)]), *[" Ann"] * answer),
    )  # fmt: skip
    whole: tuple | None = None
    for step in range(steps):
        if whole is None or kind != "arm":  # a causal row never changes; an MDM's rows all do
            queries = rng.normal(size=(layers, heads, tokens, dimension)) * sharpness
            keys = rng.normal(size=(layers, kv_heads, tokens, dimension))
            values = rng.normal(size=(layers, kv_heads, tokens, dimension))
            spread = np.repeat(keys, heads // kv_heads, axis=1)
            scores = np.einsum("lhid,lhjd->lhij", queries, spread) / np.sqrt(dimension)
            whole = (queries, keys, values, softmax(np.where(seen, scores, -np.inf)))
        rows = length + step if kind == "arm" else tokens
        queries, keys, values, attention = whole
        run.attention.append(attention[:, :, :rows])
        run.queries.append(queries[:, :, :rows])
        run.keys.append(keys)
        run.values.append(values)
    return run


def row_groups(run: FullRun, step: int) -> list[str]:
    """The group label of each row at a step."""
    groups = []
    for row in range(run.attention[step].shape[2]):
        label = run.labels[row]
        if label == "answer":
            masked = run.kind == "mdm" and run.commit_step[row - run.prompt_length] >= step
            label = "answer:masked" if masked else "answer:committed"
        groups.append(label)
    return groups


def column_sets(run: FullRun) -> dict[str, list[int]]:
    sets: dict[str, list[int]] = {}
    for position, label in enumerate(run.labels):
        sets.setdefault(label, []).append(position)
    return sets | {name: list(places) for name, places in run.marks.items()}


def group_names(run: FullRun) -> list[str]:
    names: list[str] = []
    for label in dict.fromkeys(run.labels):
        names += ["answer:masked", "answer:committed"] if label == "answer" else [label]
    return names


def committing_row(run: FullRun, slot: int) -> tuple[int, int]:
    """The step at which a slot commits and the row that predicts it."""
    shift = 0 if run.logits == "same" else 1
    return int(run.commit_step[slot]), run.prompt_length + slot - shift


def to_trace(run: FullRun, ranks: int = 3, **fields) -> Trace:
    """The contract's arrays by plain loops over the full matrices."""
    names, sets, tokens = group_names(run), column_sets(run), run.tokens
    steps, (layers, heads) = len(run.attention), run.attention[0].shape[:2]
    kv_heads = run.keys[0].shape[1]
    arrays = {
        name: np.zeros((steps, layers, tokens), np.float32)
        for name in ("received", "received_answer", "received_masked", "received_value")
    }
    arrays["region_attention"] = np.zeros((steps, layers, heads, len(names), len(sets)), np.float32)
    arrays["group_rows"] = np.zeros((steps, len(names)), np.int32)
    arrays["group_attention"] = np.zeros((steps, layers, len(names), tokens), np.float32)
    arrays["head_attention"] = np.zeros((steps, layers, heads, len(names), tokens), np.float32)
    for name in ("qk", "cos", "norm"):
        arrays[name] = np.zeros((steps, layers, heads, tokens), np.float32)
    for name in ("key_norm", "value_norm"):
        arrays[name] = np.zeros((steps, layers, kv_heads, tokens), np.float32)
    for step, attention in enumerate(run.attention):
        groups = row_groups(run, step)
        rows = attention.shape[2]
        answer = [i for i in range(rows) if run.labels[i] == "answer"]
        masked = [i for i in range(rows) if groups[i] == "answer:masked"]
        mean = attention.mean(axis=1)  # [layer, row, token]
        arrays["received"][step] = mean.mean(axis=1)
        for name, chosen in (("received_answer", answer), ("received_masked", masked)):
            if chosen:
                arrays[name][step] = mean[:, chosen].mean(axis=1)
        norms = np.linalg.norm(run.values[step], axis=-1)  # [layer, kv, token]
        wide = np.repeat(norms, heads // kv_heads, axis=1)
        arrays["received_value"][step] = (attention.mean(axis=2) * wide).mean(axis=1)
        arrays["value_norm"][step] = norms
        arrays["key_norm"][step] = np.linalg.norm(run.keys[step], axis=-1)
        for g, name in enumerate(names):
            chosen = [i for i in range(rows) if groups[i] == name]
            arrays["group_rows"][step, g] = len(chosen)
            arrays["head_attention"][step, :, :, g] = attention[:, :, chosen].sum(axis=2)
            for c, columns in enumerate(sets.values()):
                if chosen:
                    mass = attention[:, :, chosen][..., columns].sum(axis=-1).mean(axis=-1)
                    arrays["region_attention"][step, :, :, g, c] = mass
        arrays["group_attention"][step] = arrays["head_attention"][step].mean(axis=1)
        seen = visible_pairs(run.visibility, tokens)[:rows]
        for h in range(heads):
            q, k = run.queries[step][:, h], run.keys[step][:, h // (heads // kv_heads)]
            for j in range(tokens):
                who = np.flatnonzero(seen[:, j])
                if not len(who):
                    continue
                dots = np.einsum("lid,ld->li", q[:, who], k[:, j])
                sizes = np.linalg.norm(q[:, who], axis=-1) * np.linalg.norm(k[:, j], axis=-1)[:, None]
                arrays["qk"][step, :, h, j] = dots.mean(axis=1)
                arrays["cos"][step, :, h, j] = (dots / sizes).mean(axis=1)
                arrays["norm"][step, :, h, j] = sizes.mean(axis=1)
    seen = visible_pairs(run.visibility, tokens)[: run.attention[-1].shape[2]]
    arrays["seen_by"] = np.tile(seen.sum(axis=0), (layers, 1)).astype(np.int32)
    arrays |= _commits(run, sets, ranks)
    return Trace(**_fields(run, arrays) | fields).validate()


def _commits(run: FullRun, sets: dict[str, list[int]], ranks: int) -> dict[str, np.ndarray]:
    layers, heads = run.attention[0].shape[:2]
    slots = len(run.commit_step)
    keys = np.zeros((slots, layers, heads, ranks), np.int32)
    mass = np.zeros((slots, layers, heads, ranks), np.float32)
    sums = np.zeros((slots, layers, heads, len(sets)), np.float32)
    entropy = np.zeros((slots, layers, heads), np.float32)
    for slot in range(slots):
        step, row = committing_row(run, slot)
        probabilities = run.attention[step][:, :, row]  # [layer, head, token]
        keys[slot] = np.argsort(-probabilities, axis=-1)[..., :ranks]
        mass[slot] = np.take_along_axis(probabilities, keys[slot].astype(int), axis=-1)
        for c, columns in enumerate(sets.values()):
            sums[slot, :, :, c] = probabilities[..., columns].sum(axis=-1)
        logs = np.log(np.where(probabilities > 0, probabilities, 1))
        entropy[slot] = -(probabilities * logs).sum(axis=-1)
    return {"commit_keys": keys, "commit_key_mass": mass, "commit_mass": sums, "commit_entropy": entropy}


def _fields(run: FullRun, arrays: dict[str, np.ndarray]) -> dict:
    return dict(
        model="tiny-" + run.kind,
        family="causal" if run.kind == "arm" else "llada",
        kind=run.kind,
        visibility=run.visibility,
        logits=run.logits,
        sampler={"name": "test"},
        seed=0,
        canvas=run.canvas.astype(np.int64),
        slots=np.arange(run.prompt_length, run.tokens),
        texts=run.texts,
        regions=run.regions,
        marks=run.marks,
        commit_step=np.asarray(run.commit_step, np.int64),
        confidence=np.full(len(run.commit_step), 0.5, np.float32),
        qk_steps=tuple(range(len(run.attention))),
        keep="heads",
        arrays=arrays,
    )


def uniform_attention(run: FullRun) -> FullRun:
    """The same run with every row spread evenly over what it sees."""
    seen = visible_pairs(run.visibility, run.tokens).astype(float)
    even = seen / seen.sum(axis=1, keepdims=True)
    attention = [np.broadcast_to(even[: a.shape[2]], a.shape).copy() for a in run.attention]
    return replace(run, attention=attention)


def constant_rows(distribution: np.ndarray, **settings) -> FullRun:
    """An MDM whose rows are all the same: distribution [step, layer, token] is what each position receives."""
    steps, layers, tokens = distribution.shape
    answer = settings.pop("answer", 4)
    prompt = settings.pop("prompt", ("bos", *["query"] * (tokens - answer - 1)))
    run = full_run(steps=steps, layers=layers, answer=answer, prompt=prompt, texts=None, **settings)
    heads = run.attention[0].shape[1]
    shape = (layers, heads, tokens, tokens)
    attention = [np.broadcast_to(step[:, None, None, :], shape).copy() for step in distribution]
    return replace(run, attention=attention)


def peaked(positions: np.ndarray, tokens: int, height: float = 0.6) -> np.ndarray:
    """[step, layer] positions -> [step, layer, token]: one peak each, the rest spread evenly."""
    rest = (1 - height) / (tokens - 1)
    values = np.full((*positions.shape, tokens), rest)
    np.put_along_axis(values, positions[..., None], height, axis=-1)
    return values
