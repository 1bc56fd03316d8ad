"""Import of the reference's npz layouts, and what it refuses to open."""

import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from floatscope.canvas import Region
from floatscope.errors import UserError
from floatscope.traces import import_reference

TOKENS, PROMPT = 9, 6


def matrices(seed: int, count: int, causal: bool) -> np.ndarray:
    weights = np.random.default_rng(seed).random((count, TOKENS, TOKENS))
    weights = np.tril(weights) if causal else weights
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def write_full(path, causal: bool, layers=(0, 2)):
    found = matrices(0, len(layers), causal)
    members = {f"layer_{n}_full_attention": found[i] for i, n in enumerate(layers)}
    ids = np.arange(100, 100 + TOKENS)
    np.savez(
        path,
        **members,
        answer_tokens=ids[PROMPT:],
        input_length=PROMPT,
        num_generated_tokens=TOKENS - PROMPT,
        passage_ranges=np.array([[2, 4]]),
        question="who?",
        token_generation_step=np.array({6: (0, 0, 106)}, dtype=object),
        layer_0_attentions=np.array([[np.ones(2)], [np.ones(3)]], dtype=object),
    )
    return found


def test_bidirectional_full_matrices(tmp_path):
    found = write_full(tmp_path / "a.npz", causal=False)
    trace = import_reference(tmp_path / "a.npz", model="llada")
    assert (trace.kind, trace.visibility, trace.steps, trace.layers) == ("mdm", "bidirectional", 1, 2)
    assert trace.metadata["layers"] == [0, 2]
    assert trace.region_labels == ("bos", "prompt", "doc 1", "answer")
    np.testing.assert_allclose(trace.received[0], found.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(trace.received_answer[0], found[:, PROMPT:].mean(axis=1), rtol=1e-6)
    assert not trace.masked.any()
    np.testing.assert_array_equal(trace.attention[0, :, 0], found)
    flow = trace.region_matrix()[0, :, 0]
    np.testing.assert_allclose(flow[:, 3, 2], found[:, PROMPT:, 2:4].sum(axis=-1).mean(axis=-1), rtol=1e-5)
    assert (trace.canvas[PROMPT:] == [106, 107, 108]).all()


def test_causal_full_matrix_gives_every_step(tmp_path):
    found = write_full(tmp_path / "a.npz", causal=True)
    trace = import_reference(tmp_path / "a.npz")
    assert (trace.kind, trace.visibility, trace.steps) == ("arm", "causal", TOKENS - PROMPT)
    for step in range(trace.steps):
        rows = PROMPT + step
        np.testing.assert_allclose(trace.received[step], found[:, :rows].mean(axis=1), rtol=1e-6)
        assert (trace.visible[step, 0] == np.clip(rows - np.arange(TOKENS), 0, None)).all()
    assert (trace.received_answer[0] == 0).all()
    np.testing.assert_array_equal(trace.seen_by, (found[:, : TOKENS - 1] > 0).sum(axis=1))  # the rows of the last step


def step_members(mask=0):
    """Twelve steps, last step first in the file and an order by name is not the order by number; three commit."""
    found = np.stack([matrices(step, 2, causal=False) for step in range(12)])
    canvas = np.array([5, 6, 7, 8, 9, 4, mask, mask, mask])
    members = {}
    for step in range(12):
        members |= {f"step_{step}_layer_{n}_attention_avg": found[step, n] for n in range(2)}
        members[f"step_{step}_sequence"] = canvas.copy()[None]
        place = {2: 7, 9: 6, 10: 8}.get(step)
        if place is not None:
            canvas[place] = 50 + place
    return found, dict(reversed(members.items()))


def test_steps(tmp_path):
    found, members = step_members()
    np.savez(tmp_path / "s.npz", **members)
    trace = import_reference(tmp_path / "s.npz", prompt_length=PROMPT, mask_id=0)
    assert (trace.steps, trace.layers, trace.heads) == (12, 2, 1)
    np.testing.assert_allclose(trace.received, found.mean(axis=2), rtol=1e-6)
    assert list(trace.commit_step) == [9, 2, 10]
    np.testing.assert_allclose(trace.received_masked[10], found[10][:, 8:].mean(axis=1), rtol=1e-6)
    assert list(trace.group_rows[3]) == [1, 5, 2, 1]  # bos, prompt, masked, committed
    guessed = import_reference(tmp_path / "s.npz")
    assert guessed.slots[0] == PROMPT


@pytest.mark.slow
def test_the_documented_conversion_of_pickled_steps_gives_what_is_read(tmp_path):
    """The lines of docs/traces.md, run on a file that the test itself made."""
    found, members = step_members()
    steps = [
        {
            "step": n,
            **{name.removeprefix(f"step_{n}_"): v for name, v in members.items() if name.startswith(f"step_{n}_")},
        }
        for n in range(12)
    ]
    np.savez(tmp_path / "steps.npz", step_attention_data=np.array(steps, dtype=object))
    with pytest.raises(UserError, match=r"is never opened: if you trust the file, convert it as docs/traces\.md shows"):
        import_reference(tmp_path / "steps.npz")
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text()
    (snippet,) = re.findall(r"```python\n(import numpy as np\n.*?)```", page, re.DOTALL)
    subprocess.run([sys.executable, "-c", snippet], cwd=tmp_path, check=True)
    trace = import_reference(tmp_path / "plain.npz", prompt_length=PROMPT, mask_id=0)
    np.testing.assert_allclose(trace.received, found.mean(axis=2), rtol=1e-6)
    assert list(trace.commit_step) == [9, 2, 10]


def test_given_regions_are_used(tmp_path):
    write_full(tmp_path / "a.npz", causal=False)
    spans = (Region("query", 0, 6), Region("answer", 6, 9))
    assert import_reference(tmp_path / "a.npz", regions=spans).region_labels == ("query", "answer")


class Malicious:
    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("name", ["step_attention_data", "layer_0_full_attention", "answer_tokens"])
def test_a_pickle_is_never_run(tmp_path, name):
    marker = tmp_path / "owned"
    path = tmp_path / "m.npz"
    members = {"layer_0_full_attention": np.eye(3)} | {name: np.array([Malicious(marker)], dtype=object)}
    np.savez(path, **members)
    with pytest.raises(UserError, match=r"is never opened|cannot be opened"):
        import_reference(path)
    assert not marker.exists()


def test_a_dtype_that_hides_an_object_does_not_reach_memory(tmp_path):
    """An npy header may state any dtype: one with an object inside is refused like a pickle."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": [("a", "<f4"), ("b", "|O")], "fortran_order": False, "shape": (3, 3)}
    )
    with zipfile.ZipFile(tmp_path / "h.npz", "w") as archive:
        archive.writestr("layer_0_full_attention.npy", content.getvalue() + b"\x01" * 400)
    with pytest.raises(UserError, match="cannot be opened"):
        import_reference(tmp_path / "h.npz")


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (dict(nothing=np.ones(2)), "neither layer_N_full_attention nor"),
        (dict(layer_0_full_attention=np.ones((2, 3))), "not tokens x tokens"),
        (dict(layer_0_full_attention=np.eye(2), layer_1_full_attention=np.eye(3)), "differ in size"),
        (dict(layer_0_full_attention=np.eye(2), input_length=7), "does not fit a canvas"),
        (
            dict(
                step_0_layer_0_attention_avg=np.eye(2),
                step_0_layer_1_attention_avg=np.eye(2),
                step_1_layer_0_attention_avg=np.eye(2),
            ),
            "lacks step_1_layer_1_attention_avg",
        ),
    ],
)
def test_what_is_no_reference_file_is_a_sentence(tmp_path, members, sentence):
    np.savez(tmp_path / "x.npz", **members)
    with pytest.raises(UserError, match=sentence):
        import_reference(tmp_path / "x.npz")


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(UserError, match="no npz file at"):
        import_reference(tmp_path / "x.npz")
    write_full(tmp_path / "a.npz", causal=False)
    whole, read, refused = (tmp_path / "a.npz").read_bytes(), import_reference(tmp_path / "a.npz"), 0
    rng = np.random.default_rng(1)
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        (tmp_path / "a.npz").write_bytes(damaged)
        try:
            found = import_reference(tmp_path / "a.npz")
        except UserError:
            refused += 1
        else:  # a byte that nobody reads, such as a date
            assert found.canvas.tolist() == read.canvas.tolist() and found.regions == read.regions
            np.testing.assert_array_equal(found.attention, read.attention)
    assert refused > 30
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="truncated"):
        import_reference(tmp_path / "a.npz")


def test_what_a_file_of_steps_does_not_name_is_taken_from_the_slots_that_change(tmp_path):
    """The first slot that changes begins the answer; without a mask token a slot that never changes was no commit."""
    found, members = step_members()
    members["passage_ranges"] = np.array([[1, 3], [4, 6]])
    np.savez(tmp_path / "run.npz", **members, question="who?")
    trace = import_reference(tmp_path / "run.npz")
    assert (trace.model, trace.family, trace.logits, trace.kind) == ("run", "reference", "same", "mdm")
    assert (trace.slots.tolist(), trace.commit_step.tolist()) == ([6, 7, 8], [9, 2, 10])
    assert [(one.label, one.start, one.stop) for one in trace.regions] == [
        ("bos", 0, 1), ("doc 1", 1, 3), ("prompt", 3, 4), ("doc 2", 4, 6), ("answer", 6, 9),
    ]  # fmt: skip
    assert (trace.metadata["question"], trace.metadata["source"]) == ("who?", "run.npz")
    assert trace.canvas.tolist() == [5, 6, 7, 8, 9, 4, 56, 57, 58] and trace.seen_by.tolist() == [[9] * 9] * 2
    assert trace.matrix_steps.tolist() == list(range(12)) and np.isnan(trace.confidence).all()
    np.testing.assert_allclose(trace.received_answer[5], found[5][:, 6:].mean(axis=1), rtol=1e-6)
    members["step_11_sequence"][0, 8] = 0  # still masked when the run ends
    members["step_10_sequence"] = members["step_10_sequence"].copy()
    np.savez(tmp_path / "open.npz", **members)
    left = import_reference(tmp_path / "open.npz", prompt_length=PROMPT, mask_id=0)
    assert left.commit_step.tolist() == [9, 2, 11] and left.masked[11].tolist() == [False, False, True]


def test_matrices_of_heads_are_averaged_and_states_are_kept_where_all_layers_have_them(tmp_path):
    rng = np.random.default_rng(4)
    heads = rng.dirichlet(np.ones(5), (2, 3, 5)).astype(np.float32)  # [layer, head, row, token]
    states = {
        f"layer_{layer}_{kind}_states": rng.normal(size=(3, 5, 2)).astype(np.float32)
        for layer in (4, 11)
        for kind in ("query", "key")
    }
    members = {f"layer_{layer}_full_attention_heads": heads[place] for place, layer in enumerate((4, 11))}
    np.savez(tmp_path / "h.npz", **members, **states, input_length=3, answer_tokens=np.array([7, 8]))
    trace = import_reference(tmp_path / "h.npz", texts=list("abcde"))
    np.testing.assert_allclose(trace.attention[0, :, 0], heads.mean(1), rtol=1e-6)
    np.testing.assert_array_equal(trace.queries[0, 1], states["layer_11_query_states"])
    np.testing.assert_array_equal(trace.keys[0, 0], states["layer_4_key_states"])
    assert (trace.metadata["layers"], trace.texts) == ([4, 11], tuple("abcde"))
    assert trace.canvas.tolist() == [-1, -1, -1, 7, 8]
    del states["layer_11_key_states"]
    np.savez(tmp_path / "h.npz", **members, **states, input_length=3)
    assert "queries" not in import_reference(tmp_path / "h.npz").arrays


def test_an_array_without_names_is_told(tmp_path):
    np.save(tmp_path / "x.npy", np.eye(3))
    with pytest.raises(UserError, match="is an npy and no npz"):
        import_reference(tmp_path / "x.npy")


def test_causal_matrices_of_steps_are_those_of_a_model_that_denoises(tmp_path):
    """Each step has a matrix of its own, over all rows."""
    found = matrices(3, 2, causal=True)
    np.savez(tmp_path / "c.npz", **{f"step_{step}_layer_0_attention_avg": found[step] for step in range(2)})
    trace = import_reference(tmp_path / "c.npz", prompt_length=PROMPT)
    assert (trace.kind, trace.visibility, trace.steps) == ("mdm", "causal", 2)
    np.testing.assert_allclose(trace.received[:, 0], found.mean(axis=1), rtol=1e-6)
    assert trace.seen_by.tolist() == [list(range(TOKENS, 0, -1))]


def test_steps_of_which_one_does_not_tell_its_canvas_have_no_commits(tmp_path):
    _, members = step_members()
    del members["step_5_sequence"]
    np.savez(tmp_path / "s.npz", **members, answer_tokens=np.array([1, 2, 3]))
    trace = import_reference(tmp_path / "s.npz", prompt_length=PROMPT)
    assert (trace.commit_step.tolist(), trace.canvas.tolist()) == ([-1, -1, -1], [5, 6, 7, 8, 9, 4, 0, 0, 0])
    for step in range(12):
        members.pop(f"step_{step}_sequence", None)
    np.savez(tmp_path / "s.npz", **members, answer_tokens=np.array([1, 2, 3]))
    assert import_reference(tmp_path / "s.npz", prompt_length=PROMPT).canvas.tolist() == [-1] * 9  # of which step?
