"""The registry: order, refusals, lazy objects, and files that add rows."""

import pytest

from floatscope.errors import UserError
from floatscope.registry import EXTENSIONS, Registry, did_you_mean, load_object


def test_rows_keep_their_order_and_are_found_by_name() -> None:
    registry = Registry("fruit", {"pear": 1, "apple": 2})
    registry.add("fig", 3)
    assert list(registry.items()) == [("pear", 1), ("apple", 2), ("fig", 3)]
    assert registry.named("fig") == 3


def test_a_name_that_is_taken_is_refused() -> None:
    registry = Registry("fruit", {"pear": 1})
    with pytest.raises(UserError, match="There is a fruit 'pear' already: choose another name"):
        registry.add("pear", 2)
    assert registry["pear"] == 1


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    registry = Registry("fruit", {"pear": 1, "apple": 2})
    with pytest.raises(UserError) as caught:
        registry.named("aple")
    assert str(caught.value) == "There is no fruit 'aple': did you mean 'apple'? Known are pear, apple."
    assert did_you_mean("zzz", ["pear"]) == "Known are pear"
    with pytest.raises(UserError, match=r"There is no fruit \['pear'\]"):  # as a file may have it
        registry.named(["pear"])  # pyright: ignore[reportArgumentType]


def test_lazy_objects() -> None:
    from collections import OrderedDict

    assert load_object("collections:OrderedDict") is OrderedDict


def test_an_extension_runs_once_before_the_registry_is_read(tmp_path, monkeypatch) -> None:
    import sys
    from types import ModuleType

    home = ModuleType("fruit_home")
    home.registry = registry = Registry("fruit", {"pear": 1})
    monkeypatch.setitem(sys.modules, "fruit_home", home)
    file = tmp_path / "mine.py"
    file.write_text("from fruit_home import registry\nregistry.add('fig', len(registry))\n")
    monkeypatch.setenv(EXTENSIONS, str(file))
    assert dict(registry) == {"pear": 1, "fig": 1}
    assert dict(registry) == {"pear": 1, "fig": 1}  # a second run would be refused, since the name is taken


def test_an_extension_that_is_not_there_is_named(tmp_path, monkeypatch) -> None:
    missing = str(tmp_path / "none.py")
    monkeypatch.setenv(EXTENSIONS, missing)
    with pytest.raises(UserError, match=r"none\.py, which is no file"):
        list(Registry("fruit", {}))
