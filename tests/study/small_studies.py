"""Small studies on the twins, real in every part."""

from floatscope.study.plan import Curve, ModelPlan, Study, TaskPlan


def small_study(**changes) -> Study:
    """An ARM and an MDM, two tasks, with and without documents, one trace each with its controls."""
    settings = {
        "name": "small",
        "models": (ModelPlan("twin-arm"), ModelPlan("twin-llada")),
        "tasks": (TaskPlan("world:rag:3"), TaskPlan("world:twohop:3")),
        "conditions": (Curve("documents", "0"), Curve("documents", "3", traces=1)),
        "limit": 5,
        "slots": 4,
        "batch": 4,
    }
    return Study(**settings | changes)
