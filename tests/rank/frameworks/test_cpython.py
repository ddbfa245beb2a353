"""Private names of CPython."""

import sys
import threading
from pathlib import Path

import pytest

from toolkit.rank.frameworks.cpython import get_frame, is_being_imported


def test_a_module_is_being_imported_until_its_code_has_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys\nfrom toolkit.rank.frameworks.cpython import is_being_imported\n"
        "meanwhile = is_being_imported(sys.modules[__name__])\n"
    )
    (tmp_path / "lantern_of_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    import lantern_of_a_test  # type: ignore[import-not-found]

    assert lantern_of_a_test.meanwhile
    assert not is_being_imported(sys.modules["lantern_of_a_test"])


def test_the_frame_of_a_thread_is_what_it_runs() -> None:
    frame = get_frame(threading.get_ident())

    assert frame is not None
    assert frame.f_code.co_name in ("test_the_frame_of_a_thread_is_what_it_runs", "get_frame")
    assert get_frame(0) is None
