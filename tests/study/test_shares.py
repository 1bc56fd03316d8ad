"""Shares: each in a store of its own, merged into the bytes of one process; what does not fit together is refused."""

import json
import shutil
from dataclasses import replace

import pytest

from floatscope.errors import UserError
from floatscope.files import replace_sealed, unsealed
from floatscope.study.division import Division, parse_share
from floatscope.study.merging import merge_shares
from floatscope.study.plan import TaskPlan
from floatscope.study.running import run_study
from floatscope.study.store import Run, read_rows
from tests.study.run_bytes import run_bytes
from tests.study.small_studies import small_study

STUDY = small_study(batch=2, limit=3, analyses=("drift",))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same study in one go, and in three shares that are not merged yet."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        whole, divided = tmp_path_factory.mktemp("whole") / "run", tmp_path_factory.mktemp("divided") / "run"
        run_study(STUDY, whole)
        for share in (3, 1, 2):
            run_study(STUDY, divided, division=Division(share, 3))
        return whole, divided


@pytest.fixture
def divided(folders, tmp_path):
    return shutil.copytree(folders[1], tmp_path / "run")


def units(folder):
    return [
        tuple(row[part] for part in ("model", "task", "condition", "sample", "control")) for row in read_rows(folder)
    ]


def test_merged_shares_are_the_bytes_of_one_process(folders, divided):
    whole, _ = folders
    shares = [units(divided / "shares" / f"{share}-of-3") for share in (1, 2, 3)]
    assert min(map(len, shares)) > 0 and sorted(unit for share in shares for unit in share) == sorted(units(whole))
    outcome = merge_shares(divided)
    assert outcome.units == len(units(whole)) and outcome.failed == 0
    merged, alone = run_bytes(divided), run_bytes(whole)
    assert merged == alone
    assert {"report.html", "study.toml", "manifest.json", "tables/scores.parquet", "figures/drift.svg"} <= merged.keys()
    assert sum(name.startswith("traces/") for name in merged) == 12
    merge_shares(divided)
    assert run_bytes(divided) == alone  # a second time changes nothing
    assert run_study(STUDY, divided).done_now == 0  # and it is a run like any other


def test_a_share_that_is_run_again_does_only_what_it_lacks(folders, divided):
    assert run_study(STUDY, divided, division=Division(2, 3)).done_now == 0
    trace = next((divided / "shares" / "2-of-3" / "traces").iterdir())
    trace.write_bytes(trace.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"1 of the .* units .* are in no share, or their rows or traces are damaged"):
        merge_shares(divided)
    again = run_study(STUDY, divided, division=Division(2, 3))
    assert again.done_now == 1 and again.units == len(units(divided / "shares" / "2-of-3"))
    merge_shares(divided)
    assert units(divided) != [] and sorted(units(divided)) == sorted(units(folders[0]))


def test_a_share_has_the_same_batches_after_it_lost_some_and_with_other_workers(tmp_path):
    """Its place among the shares follows from the full plan: here every load of a model is one batch or two."""
    study = small_study(batch=16, limit=2, tasks=(TaskPlan("world:rag:3"),))
    shares = [run_study(study, tmp_path, division=Division(share, 2)).run.folder for share in (1, 2)]
    first = [sorted(units(folder)) for folder in shares]
    assert not {*first[0]} & {*first[1]}
    lost = next(place for place, folder in enumerate(shares) if any((folder / "traces").iterdir()))
    next((shares[lost] / "traces").iterdir()).unlink()
    again = run_study(replace(study, workers=2), tmp_path, division=Division(lost + 1, 2))
    assert again.done_now == 1 and [sorted(units(folder)) for folder in shares] == first


def test_shares_that_do_not_belong_together_are_refused(divided, monkeypatch, tmp_path):
    share = divided / "shares" / "2-of-3"
    manifest = unsealed(json.loads((share / "manifest.json").read_text()))
    assert manifest is not None
    for part, change in {
        "versions torch": manifest | {"versions": manifest["versions"] | {"torch": "1.0"}},
        "models twin-arm sha256 model.safetensors": manifest
        | {"models": manifest["models"] | {"twin-arm": {"source": "twin-arm", "sha256": {"model.safetensors": "0"}}}},
        "seed": manifest | {"seed": 1},
    }.items():
        replace_sealed(share / "manifest.json", change)
        told = "models twin-arm" if part.startswith("models") else part
        with pytest.raises(UserError, match=f"1-of-3 and 2-of-3 do not belong together, since {told}"):
            merge_shares(divided)
    replace_sealed(share / "manifest.json", manifest)
    (share / "study.toml").write_text((share / "study.toml").read_text().replace("slots = 4", "slots = 5"))
    with pytest.raises(UserError, match=r"study\.toml is not what the run was made with"):
        merge_shares(divided)


def test_another_plan_another_number_and_unfinished_shares_are_refused(divided, tmp_path):
    with pytest.raises(UserError, match="holds another study: seed is 0 there and 1 here"):
        run_study(replace(STUDY, seed=1), divided, division=Division(1, 3))
    with pytest.raises(UserError, match="is divided otherwise, since it has the share 1-of-3"):
        run_study(STUDY, divided, division=Division(1, 4))
    (divided / "shares" / "3-of-3" / "finished").unlink()
    with pytest.raises(UserError, match=r"1 of the 3 shares of .* are not finished \(3-of-3\)"):
        merge_shares(divided)
    shutil.rmtree(divided / "shares" / "2-of-3")
    with pytest.raises(UserError, match=r"2 of the 3 shares of .* are not finished \(2-of-3, 3-of-3\)"):
        merge_shares(divided)
    with pytest.raises(UserError, match="There are no shares in"):
        merge_shares(tmp_path)


@pytest.mark.parametrize(("number", "end"), [(10, "10-of-10"), (12, "10-of-12, ...")])
def test_of_many_unfinished_shares_the_first_ten_are_named(tmp_path, number, end):
    (tmp_path / "shares" / f"7-of-{number}").mkdir(parents=True)
    with pytest.raises(UserError) as told:
        merge_shares(tmp_path)
    assert f"{number} of the {number} shares of {tmp_path} are not finished (1-of-{number}, 2-of" in str(told.value)
    assert f" {end}): run them, then merge again." in str(told.value)


def test_traces_are_copied_where_the_disk_has_no_links(folders, divided, monkeypatch):
    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr("floatscope.study.merging.os.link", refuse)
    merge_shares(divided)
    traces = Run(divided).traces(control=None)
    assert len(traces) == 12 and all(path.stat().st_nlink == 1 for path in traces)
    assert run_bytes(divided) == run_bytes(folders[0])
    traces[0].write_bytes(traces[0].read_bytes()[:-20])  # a copy can be damaged alone: its share still has it
    merge_shares(divided)
    assert run_bytes(divided) == run_bytes(folders[0])
    path = divided / "study.toml"
    path.write_text(path.read_text().replace("limit = 3", "limit = 2"))
    with pytest.raises(UserError, match="holds another study: limit is 2 there and 3 here"):
        merge_shares(divided)


def test_shares_as_they_are_written():
    assert parse_share("3/16") == (3, 16)
    slurm = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4"}
    assert parse_share("slurm", {**slurm, "SLURM_ARRAY_TASK_MIN": "4"}) == (4, 4)
    assert parse_share("slurm", {**slurm, "SLURM_ARRAY_TASK_MIN": "3", "SLURM_ARRAY_TASK_STEP": "2"}) == (3, 4)
    for wrong in ("3", "3/", "a/b", "-1/2", "1/2/3"):
        with pytest.raises(UserError, match="is no share: write 3/16"):
            parse_share(wrong)
    with pytest.raises(UserError, match="for the tasks of a job array"):
        parse_share("slurm", {})
    for wrong in ((0, 2), (3, 2)):
        with pytest.raises(UserError, match="shares are counted from 1"):
            Division(*wrong)
    with pytest.raises(UserError, match="There is no engine 'rai': did you mean 'ray'"):
        Division(engine="rai")
    with pytest.raises(UserError, match="add --engine ray"):
        Division(address="auto")
