"""What a release says of itself agrees: versions of Python and of the package, in every place that names them."""

import re
import tomllib
from pathlib import Path

import yaml

import floatscope

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def test_every_python_is_named_everywhere():
    first, last = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups())
    wanted = [f"3.{minor}" for minor in range(first, last)]
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", one)]
    assert named == wanted == workflow("test")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert f"Python {wanted[0]} to {wanted[-1]}" in (ROOT / "README.md").read_text()
    assert f"(3, {first}) <= sys.version_info < (3, {last})" in (ROOT / "Makefile").read_text()


def test_the_citation_and_the_command_have_their_names():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == floatscope.__version__ and cited["license"] == PROJECT["license"]
    assert PROJECT["name"] in PROJECT["scripts"]  # so that `uvx floatscope` finds it


def test_publishing_is_trusted_and_every_run_is_of_few_rights():
    for name in ("test", "docs", "publish"):
        found = workflow(name)
        assert found["permissions"] == {"contents": "read"}
        assert not re.search("secrets", str(found))
    publish = workflow("publish")
    assert publish[True]["push"] == {"tags": ["v*"]}  # YAML reads the key "on" as true
    assert publish["jobs"]["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}
    assert publish["jobs"]["publish"]["steps"][-1]["with"]["attestations"] is True
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        fields = yaml.safe_load(form.read_text()).get("body", [])
        assert form.name == "config.yml" or all({"type", "id", "attributes"} <= field.keys() for field in fields)
