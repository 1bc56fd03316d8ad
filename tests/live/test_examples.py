"""The samples that the page starts from: of the twins' world for the twins, of ours for models that read anything."""

from dataclasses import asdict

from floatscope.live.examples import is_twin, sample_groups
from floatscope.qa.world import World

WORLD = {
    "One document holds the answer": ("rag", 5),
    "The answer takes two documents": ("twohop", 4),
    "The document contradicts what was learnt": ("counterfactual", 4),
    "No document holds the answer": ("unanswerable", 4),
    "From memory, without documents": ("closed-stable", 0),
    "A gap in a passage": ("passages-infill", 5),
    "What stood before these notes": ("passages-mirrored", 5),
}


def test_everyday_samples_are_for_models_that_can_read_them():
    twins, mixed, others = (
        [group["name"] for group in sample_groups(names)]
        for names in (["twin-llada", "twin-arm-untrained"], ["twin-llada", "llada-8b"], ["llada-8b"])
    )
    assert twins == list(WORLD)
    assert mixed == ["Everyday knowledge", *WORLD]
    assert others == ["Everyday knowledge"]
    assert [is_twin(name) for name in ("twin-parent", "twin-dream-untrained", "twin-lada")] == [True, True, False]


def test_samples_of_the_world_are_as_the_form_has_them():
    groups = {group["name"]: group["samples"] for group in sample_groups(["twin-llada"])}
    for name, (kind, documents) in WORLD.items():
        expected = World(0).samples(kind, 6, documents=documents)
        assert len(groups[name]) == 6
        for shown, sample in zip(groups[name], expected, strict=True):
            assert shown["answers"] == list(sample.answers)
            if kind.startswith("passages"):
                assert shown["question"] == f"{sample.before}{{answer}}{sample.after}" and shown["documents"] == []
            else:
                assert shown["question"] == sample.question and "slots" not in shown
                assert shown["documents"] == [asdict(document) for document in sample.documents]
                assert len(shown["documents"]) == documents
