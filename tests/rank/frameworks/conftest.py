"""Each test of the fence sees the lines about missing names anew, as the first rank."""

import pytest

from toolkit.rank.frameworks import private_names


@pytest.fixture(autouse=True)
def reports_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    private_names.report_missing.cache_clear()
    for name in private_names.RANKS:
        monkeypatch.delenv(name, raising=False)
