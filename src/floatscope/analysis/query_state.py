"""Query state: where slots that are still masked look, against slots that have committed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floatscope.analysis.depth import THIRDS, thirds
from floatscope.analysis.results import DEFAULTS, NO_CONTROLS, Controls, Options, Panel, Result, analyse
from floatscope.analysis.token_classes import CLASSES, class_mass, step_classes
from floatscope.analysis.uniform import uniform_trace
from floatscope.canvas import ANSWER
from floatscope.errors import UserError
from floatscope.traces import Trace

Array = NDArray[Any]
STATES = ("masked", "committed", "masked - committed")


def query_state(traces: Iterable[Trace], options: Options = DEFAULTS, controls: Controls = NO_CONTROLS) -> Result:
    """Attention from masked and from committed answer rows to each region and token class, by depth third.

    The difference is taken per sample over the steps that have both kinds of rows.
    """

    def measure(trace: Trace, rng: np.random.Generator, panel: Panel) -> dict[str, Any] | None:
        if ANSWER not in trace.region_labels:
            panel.note("Traces without an answer region are left out.")
            return None
        panel.note("The column 'random' is null: targets are given, not chosen.")
        if trace.texts is None:
            panel.note("Traces without token texts have no token classes: only their regions are measured.")
        if trace.kind == "arm":
            panel.note("An ARM has no masked rows: its values for 'masked' are null.")
        found, labels = _trace_states(trace)
        flat, _ = _trace_states(uniform_trace(trace))
        kinds = [kind for kind, _ in labels]
        names = [name for _, name in labels]
        blocks = len(STATES) * 4
        return {
            "state": np.repeat(STATES, 4 * len(labels)),
            "depth": np.tile(np.repeat((*THIRDS, "all"), len(labels)), len(STATES)),
            "target_kind": kinds * blocks,
            "target": names * blocks,
            "value": found.ravel(),
            "uniform": flat.ravel(),
        }

    keys = ("state", "depth", "target_kind", "target")
    result, panel = analyse("query_state", traces, keys, measure, options, controls)
    if not panel.frames:
        raise UserError("No trace has an answer region; trace prompts built from questions and documents.")
    return result


def _trace_states(trace: Trace) -> tuple[Array, list[tuple[str, str]]]:
    """[state, depth and all, target] mean over steps that have such rows, and the targets."""
    groups = [trace.group_labels.index(f"{ANSWER}:{state}") for state in STATES[:2]]
    rows = trace.group_rows[:, groups].T.astype(np.float64)  # [state, step]
    regions = len(trace.region_labels)
    mass = trace.region_attention[:, :, :, groups, :regions].mean(axis=2)  # [step, layer, state, region]
    values = np.moveaxis(mass, 2, 0)  # [state, step, layer, region]
    labels = [("region", label) for label in trace.region_labels]
    if trace.texts is not None:
        values = np.concatenate([values, _by_class(trace, rows)], axis=-1)
        labels += [("class", name) for name in CLASSES]
    depth = np.vstack([np.eye(3)[:, thirds(trace.layers)], np.ones(trace.layers)])  # [4, layer]
    depth /= np.maximum(depth.sum(axis=1, keepdims=True), 1)
    pooled = np.einsum("dl,nslt->nsdt", depth, values)  # [state, step, depth, target]
    both = (rows[0] > 0) & (rows[1] > 0)
    parts = [_over_steps(pooled[n], rows[n] > 0) for n in (0, 1)]
    return np.stack([*parts, _over_steps(pooled[0] - pooled[1], both)]), labels


def _by_class(trace: Trace, rows: Array) -> Array:
    """[state, step, layer, class]; committed rows are the answer's rows without the masked ones."""
    classes = step_classes(trace)
    masked = class_mass(trace.received_masked, classes)
    answer = class_mass(trace.received_answer, classes)
    weight, total = rows[0][:, None, None], rows.sum(axis=0)[:, None, None]
    committed = (answer * total - masked * weight) / np.maximum(total - weight, 1)
    return np.stack([masked, committed])


def _over_steps(values: Array, known: Array) -> Array:
    """[step, depth, target] -> [depth, target]; nan where no step counts."""
    if not known.any():
        return np.full(values.shape[1:], np.nan)
    return values[known].mean(axis=0)
