"""One run that many tests look at."""

import pytest

from floatscope.study.running import run_study
from tests.study.small_studies import small_study


@pytest.fixture(scope="session")
def outcome(tmp_path_factory):
    """The small study, run once without a disturbance, with the cache that tests have."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FLOATSCOPE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return run_study(small_study(), tmp_path_factory.mktemp("runs") / "small")
