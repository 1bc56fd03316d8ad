"""Attribution as a condition of a study: `floatscope explain --task`, and `stressor = "attribution"` in a study file.

A unit is answered as under `documents`, and its row tells where the answer came from.
"""

from dataclasses import dataclass

from floatscope.errors import UserError
from floatscope.qa.stressors import STRESSORS, Condition, Stressor
from floatscope.registry import did_you_mean


@dataclass(frozen=True)
class AttributionOptions:
    """What answers are attributed among, and what is measured beside."""

    documents: int = 0
    """Documents that are shown; 0: a sample's own."""
    sentences: bool = False
    """Hide every sentence too, not documents alone."""
    removal: bool = False
    """Hide every set of documents, for curves of removal: 2^D sequences per answer, up to six documents."""


def attribution_conditions(values: str, options: AttributionOptions) -> tuple[Condition, ...]:
    """One condition with all its methods: they share the answer."""
    from floatscope.attribution import METHODS

    methods = [part.strip() for part in values.split(",") if part.strip()]
    methods = list(METHODS) if methods == ["all"] else methods
    for name in methods:
        if name not in METHODS:
            raise UserError(f"There is no attribution method {name!r}: {did_you_mean(name, METHODS)}.")
    shown = STRESSORS["documents"].conditions(str(options.documents or "own"))[0]
    asked = (*methods, *(name for name in ("sentences", "removal") if getattr(options, name)))
    name, labels = f"attribution/{options.documents or 'own'}", {"documents": options.documents or None}
    return (
        Condition(name, "attribution", labels, stream=shown.stream, transform=shown.transform, attribution=asked),
    )  # fmt: skip


STRESSORS.add(
    "attribution",
    Stressor(
        name="attribution",
        summary="Methods of attribution; all: every one",
        example="leave_one_out,rollout",
        make=attribution_conditions,
        labels={"documents": int},
        axis=None,
        options=AttributionOptions,
    ),
)
