"""The start-up hook records an exception: the whole of it, at once, and without a visible effect."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolkit.status_pages import layout as layout
from toolkit.status_pages import pages

ROOT = Path(__file__).parents[3]
HOOK = ROOT / "toolkit/rank/hook/site"
RAISED_BYTES = 64 * 1024
# In its own file, so that its lines can be shown in a traceback.
DEEP = """
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError('no shard \\u00e9 "7"\\n\\ttab \\\\ \\udc80') from error

def inner():
    raise KeyError('shard')
"""


class Done:
    """A script that ran under the hook, and what it left."""

    def __init__(
        self,
        folder: Path,
        program: str,
        *,
        python: str | Path = sys.executable,
        hook: bool = True,
        status_folder: Path | None = None,
        leads: bool = False,
    ) -> None:
        self.status_folder = folder / "status"
        self.status_folder.mkdir(exist_ok=True)
        variables = {"TOOLKIT_STATUS_FOLDER": str(status_folder or self.status_folder)} if hook else {}
        path = folder / "script.py"
        path.write_text(program)
        process = subprocess.Popen(
            [python, path],
            env={"PYTHONPATH": str(HOOK), "PYTHONIOENCODING": "utf-8", **variables},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=leads,  # As `train` starts ranks.
        )
        out, err = process.communicate(timeout=60)
        self.pid = process.pid
        self.out, self.err, self.status = out.decode(), err.decode(), process.returncode
        self.raised = pages.read_raised(self.status_folder, process.pid)
        self.files = sorted(path.name for path in self.status_folder.iterdir())


def pythons() -> list[Path]:
    return sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))


def test_an_exception_is_left_whole_with_its_time_and_printed_as_ever(tmp_path: Path) -> None:
    program = DEEP + "outer()\n"
    before_ns = time.monotonic_ns()

    done, without = Done(tmp_path, program), Done(tmp_path, program, hook=False)

    assert done.raised is not None
    assert before_ns < done.raised.time_ns < time.monotonic_ns()
    assert (done.raised.kind, done.raised.thread) == ("ValueError", "main")
    assert done.raised.message == 'no shard \u00e9 "7"\n\ttab \\ \\udc80'
    assert done.raised.place == f"{tmp_path}/script.py:6 in outer"
    assert done.raised.text == without.err  # Chained ones too; the lone surrogate escaped as stderr does.
    assert (done.status, done.out, done.err) == (without.status, without.out, without.err)
    assert len(done.files) == 1


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("import json\njson.loads('{')\n", "json.decoder.JSONDecodeError"),
        ("class Mine(Exception): pass\nraise Mine('x')\n", "Mine"),
        ("def f():\n    class Mine(Exception): pass\n    raise Mine\nf()\n", "f.<locals>.Mine"),
        ("class Silent(Exception):\n    def __str__(self): raise OSError\nraise Silent\n", "Silent"),
        ("def f(): f()\nf()\n", "RecursionError"),
        ("import no_such_module\n", "ModuleNotFoundError"),
        ("raise MemoryError\n", "MemoryError"),
        ("this is no python\n", "SyntaxError"),
        ("class Own(BaseException): pass\nraise Own\n", "Own"),
    ],
)
def test_every_kind_of_exception_is_named(tmp_path: Path, program: str, kind: str) -> None:
    done = Done(tmp_path, program)

    assert done.raised is not None
    assert done.raised.kind == kind
    assert done.raised.text == done.err
    assert done.status == 1


@pytest.mark.parametrize(
    "program", ["raise SystemExit(3)\n", "raise SystemExit('bye')\n", "raise KeyboardInterrupt\n", "print(1)\n"]
)
def test_an_end_that_is_no_error_leaves_nothing(tmp_path: Path, program: str) -> None:
    done = Done(tmp_path, program)

    assert (done.raised, done.files) == (None, [])


def test_a_long_text_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    done = Done(tmp_path, "raise ValueError('\\u00e9' * 5_000_000 + ' the end')\n")

    assert done.raised is not None
    assert len(done.raised.text.encode()) <= RAISED_BYTES
    assert len(done.raised.text.encode()) > RAISED_BYTES - 8
    assert done.raised.text.startswith("Traceback (most recent call last):\n")
    assert "... the middle of this text was too long to be kept ..." in done.raised.text
    assert done.raised.text.endswith("the end\n")


def test_of_a_deep_traceback_the_innermost_frames_are_formatted(tmp_path: Path) -> None:
    deep = "def down(n):\n    if n: down(n - 1)\n    raise KeyError(n)\n"
    done = Done(tmp_path, f"import sys\nsys.setrecursionlimit(10_000)\n{deep}down(3000)\n")

    assert done.raised is not None
    assert "[Previous line repeated 996 more times]" in done.raised.text
    assert done.raised.place.endswith("script.py:5 in down")


def test_a_text_that_json_has_to_escape_comes_back_unchanged(tmp_path: Path) -> None:
    text = "".join(map(chr, range(1, 0x250))) + "\u2028\U0001f600"
    done = Done(tmp_path, f"raise ValueError({text!r})\n")

    assert done.raised is not None
    assert text in done.raised.text
    assert json.loads((done.status_folder / done.files[0]).read_bytes())["text"] == done.raised.text


def test_the_scripts_own_hook_is_called_and_may_call_ours(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "before = sys.excepthook\n"
        "def mine(*error):\n"
        "    print('mine')\n"
        "    before(*error)\n"
        "sys.excepthook = mine\n"
        "raise ValueError('x')\n"
    )
    done = Done(tmp_path, program)

    assert done.out == "mine\n"
    assert done.err.endswith("ValueError: x\n")
    assert done.raised is not None


def test_a_hook_that_was_there_before_is_called_after(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.excepthook = lambda *error: print('theirs', error[1])\n"
        "sys.path.insert(0, " + repr(str(HOOK)) + ")\n"
        "sys.modules.pop('sitecustomize', None)\n"
        "import sitecustomize\n"
        "raise ValueError('x')\n"
    )
    done = Done(tmp_path, program)

    assert (done.out, done.err) == ("theirs x\n", "")
    assert done.raised is not None


@pytest.mark.parametrize("place", ["gone", "a file", "read only"])
def test_where_nothing_can_be_written_the_exception_is_printed_as_ever(tmp_path: Path, place: str) -> None:
    folders = {"gone": tmp_path / "none", "a file": tmp_path / "script.py", "read only": Path("/proc")}[place]

    done, without = (
        Done(tmp_path, "raise ValueError(7)\n", status_folder=folders, hook=hook) for hook in (True, False)
    )

    assert (done.status, done.err) == (without.status, without.err)
    assert done.files == []


def test_a_full_disk_leaves_no_half_a_file(tmp_path: Path) -> None:
    done = Done(
        tmp_path, "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))\nraise ValueError('x')\n"
    )

    assert done.files == []
    assert done.err.endswith("ValueError: x\n")


def test_an_exception_in_a_thread_is_marked_and_printed_as_ever(tmp_path: Path) -> None:
    program = "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()\n"
    done = Done(tmp_path, program)

    assert done.status == 0
    assert done.raised is not None
    assert (done.raised.kind, done.raised.thread) == ("ZeroDivisionError", "other")
    assert done.raised.text.endswith("ZeroDivisionError: division by zero\n")
    assert done.err.startswith("Exception in thread ")
    assert done.err.endswith(done.raised.text)


def test_the_main_threads_exception_counts_before_those_of_others(tmp_path: Path) -> None:
    other = "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start(); thread.join()\n"
    after = "import atexit\nimport threading\n@atexit.register\ndef last():\n    " + other.replace("\n", "\n    ")

    first = Done(tmp_path, other + "raise ValueError('main')\n")
    second = Done(tmp_path, after + "\nraise ValueError('main')\n")

    assert "ZeroDivisionError" in first.err
    assert "ZeroDivisionError" in second.err
    assert [done.raised and (done.raised.kind, done.raised.thread) for done in (first, second)] == [
        ("ValueError", "main"),
        ("ValueError", "main"),
    ]


def test_a_thread_that_leaves_by_system_exit_leaves_nothing(tmp_path: Path) -> None:
    done = Done(tmp_path, "import sys, threading\nthread = threading.Thread(target=sys.exit)\nthread.start()\n")

    assert (done.status, done.err, done.files) == (0, "", [])


def test_a_forked_child_leaves_its_own(tmp_path: Path) -> None:
    done = Done(tmp_path, "import os\nif os.fork() == 0:\n    raise ValueError('child')\nos.wait()\n")

    assert done.raised is None
    assert len(done.files) == 1
    assert done.status == 0


def test_without_train_no_hook_is_set(tmp_path: Path) -> None:
    program = "import sys, threading\nprint(sys.excepthook is sys.__excepthook__, threading.excepthook.__module__)\n"

    assert Done(tmp_path, program, hook=False).out == "True _thread\n"


def test_at_start_it_imports_nothing(tmp_path: Path) -> None:
    program = "import sys\nprint(sorted(sys.modules))\n"

    assert Done(tmp_path, program).out == Done(tmp_path, program, hook=False).out


def test_the_figures_are_those_of_the_layout(tmp_path: Path) -> None:
    text = (HOOK / "sitecustomize.py").read_text()

    assert "RAISED_BYTES = 64 * 1024" in text
    assert '"raised-%d.json"' in text
    assert layout.RAISED_NAME == "raised-%d.json"
    assert f'environ.get("{layout.VARIABLE}")' in text


@pytest.mark.parametrize("python", pythons() or [Path("none")], ids=lambda path: path.parent.parent.name)
def test_it_works_on_every_python_installed_here(tmp_path: Path, python: Path) -> None:
    if python.name == "none":
        pytest.skip("no other Python is installed here")
    other = "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start(); thread.join()\n"

    done = Done(tmp_path, DEEP + "outer()\n", python=python)
    threaded = Done(tmp_path, other, python=python)

    assert done.raised is not None
    assert (done.raised.kind, done.raised.thread, done.raised.text) == ("ValueError", "main", done.err)
    assert threaded.err.count("ZeroDivisionError: division by zero") == 1
    if tuple(map(int, python.parent.parent.name.split("."))) >= (3, 8):
        assert threaded.raised is not None
        assert threaded.raised.thread == "other"


def test_the_message_is_left_before_the_traceback_is_made(tmp_path: Path) -> None:
    done = Done(tmp_path, "import sys\nsys.modules['traceback'] = None\nraise ValueError('no shard')\n")

    assert done.raised is not None
    assert done.raised.text == "ValueError: no shard"


def test_a_message_that_cannot_be_made_is_left_out(tmp_path: Path) -> None:
    program = "class Mute(Exception):\n    def __str__(self):\n        raise KeyError\n"

    done = Done(tmp_path, f"{program}import sys\nsys.modules['traceback'] = None\nraise Mute\n")

    assert done.raised is not None
    assert done.raised.text == "Mute"


ENDS_SLOWLY = """
import atexit, os, pathlib, sys
word = pathlib.Path(os.environ['TOOLKIT_STATUS_FOLDER'], f'raised-{os.getpid()}.json')
atexit.register(lambda: print('at exit:', word.exists()))
"""


@pytest.mark.parametrize(("status", "code"), [("3", 3), ("-1", 255), ("'no data'", 1)])
def test_an_exit_with_a_code_leaves_word_before_what_the_script_has_at_its_exit(
    tmp_path: Path, status: str, code: int
) -> None:
    done = Done(tmp_path, f"{ENDS_SLOWLY}sys.exit({status})\n")

    assert done.status == code
    assert done.out == "at exit: True\n"
    assert done.raised is not None
    assert (done.raised.kind, done.raised.code, done.raised.text) == ("SystemExit", code, "")


@pytest.mark.parametrize("status", ["0", "None", ""])
def test_an_exit_with_0_leaves_none(tmp_path: Path, status: str) -> None:
    done = Done(tmp_path, f"import sys\nsys.exit({status})\n")

    assert done.status == 0
    assert done.raised is None


@pytest.mark.parametrize("end", ["", "sys.exit(0)\n"])
def test_a_rank_that_comes_to_its_end_leaves_word_of_it(tmp_path: Path, end: str) -> None:
    done = Done(tmp_path, "import sys\n" + end, leads=True)

    assert done.status == 0
    assert done.raised is not None
    assert (done.raised.kind, done.raised.code, done.raised.text) == ("SystemExit", 0, "")


def test_a_rank_that_raises_leaves_its_exception_and_no_word_of_an_end(tmp_path: Path) -> None:
    done = Done(tmp_path, "raise ValueError('late')\n", leads=True)

    assert done.raised is not None
    assert (done.raised.kind, done.raised.code) == ("ValueError", 1)


def test_an_exit_that_the_script_catches_leaves_none_while_it_runs_and_none_in_place_of_an_exception(
    tmp_path: Path,
) -> None:
    caught = "import sys, os\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n"

    done = Done(tmp_path, caught + "print(os.listdir(os.environ['TOOLKIT_STATUS_FOLDER']))\nraise ValueError('late')\n")

    assert done.status == 1
    assert done.out == "[]\n"
    assert done.raised is not None
    assert (done.raised.kind, done.raised.code) == ("ValueError", 1)


@pytest.mark.parametrize("leave", ["sys.exit(3)", "exit(3)"])
def test_an_exit_says_where_it_was_called_and_what_was_being_handled(tmp_path: Path, leave: str) -> None:
    program = f"import sys\ntry:\n    open('/nope')\nexcept OSError:\n    {leave}\n"

    done = Done(tmp_path, program)

    assert done.status == 3
    assert done.raised is not None
    assert (done.raised.kind, done.raised.place) == ("SystemExit", f"{tmp_path}/script.py:5 in <module>")
    assert done.raised.handling == pages.Thrown(
        kind="FileNotFoundError",
        message="[Errno 2] No such file or directory: '/nope'",
        place=f"{tmp_path}/script.py:3 in <module>",
        frames=(f"{tmp_path}/script.py:3 in <module>",),
    )


def test_an_exit_outside_of_a_handler_says_its_text_and_names_no_exception(tmp_path: Path) -> None:
    done = Done(tmp_path, "import sys\ntry:\n    1 / 0\nexcept ArithmeticError:\n    pass\nsys.exit('no data')\n")

    assert done.err == "no data\n"
    assert done.raised is not None
    assert (done.raised.message, done.raised.handling) == ("no data", None)


def test_an_exception_that_only_the_scripts_own_hook_saw_is_left_at_the_end(tmp_path: Path) -> None:
    program = "import sys\nsys.excepthook = lambda *_: print('mine')\nraise ValueError('no shard')\n"

    done = Done(tmp_path, program)

    assert (done.status, done.out, done.err) == (1, "mine\n", "")
    assert done.raised is not None
    assert (done.raised.kind, done.raised.message) == ("ValueError", "no shard")
    assert done.raised.text.endswith("ValueError: no shard\n")


def test_an_exit_from_the_scripts_own_hook_tells_of_the_exception(tmp_path: Path) -> None:
    program = "import sys\nsys.excepthook = lambda *_: sys.exit(4)\nraise ValueError('no shard')\n"

    done = Done(tmp_path, program)

    assert done.status == 4
    assert done.raised is not None
    assert done.raised.handling is not None
    assert done.raised.handling.kind == "ValueError"


def test_of_a_huge_message_the_beginning_is_left_with_type_and_place(tmp_path: Path) -> None:
    done = Done(tmp_path, "class Big(Exception):\n    pass\nraise Big('no shard\\n' + 'line\\n' * 1_000_000)\n")

    assert done.raised is not None
    assert (done.raised.kind, done.raised.place) == ("Big", f"{tmp_path}/script.py:3 in <module>")
    assert done.raised.message.startswith("no shard\nline\n")
    assert len(done.raised.message) <= 8192


def test_an_exit_that_no_python_code_calls_is_one_all_the_same(tmp_path: Path) -> None:
    done = Done(tmp_path, "import atexit, sys\natexit.register(sys.exit, 3)\n")

    assert "SystemExit: 3" in done.err
    assert "ValueError" not in done.err


@pytest.mark.parametrize(
    "show",
    [
        "try:\n    1 / 0\nexcept ArithmeticError:\n    sys.excepthook(*sys.exc_info())\n",
        "import code\ncode.InteractiveInterpreter().runsource('1 / 0')\n",
    ],
)
def test_an_exception_that_the_script_only_shows_is_not_what_ends_it(tmp_path: Path, show: str) -> None:
    left = Done(tmp_path, f"import sys\n{show}sys.exit(3)\n")
    done = Done(tmp_path, f"import os, sys\n{show}print(os.listdir(os.environ['TOOLKIT_STATUS_FOLDER']))\n")

    assert "ZeroDivisionError" in left.err
    assert left.raised is not None
    assert (left.raised.kind, left.raised.handling) == ("SystemExit", None)
    assert str(done.pid) not in done.out


def test_a_module_that_raises_is_known_to_have_ended(tmp_path: Path) -> None:
    (tmp_path / "training.py").write_text("raise ValueError('no shard')\n")
    program = "import os, sys\nos.execv(sys.executable, [sys.executable, '-m', 'training'])\n"

    done = Done(tmp_path, program)

    assert done.raised is not None
    assert done.raised.kind == "ValueError"


@pytest.mark.parametrize(
    ("raises", "behind"),
    [
        ("raise Lost('gave up') from None", ["OSError: reset by peer"]),
        ("raise Lost('gave up') from error", ["OSError: reset by peer"]),
        ("raise Lost('gave up')", ["OSError: reset by peer"]),
        (
            "try:\n        raise Lost('one') from None\n    except Lost:\n        raise Lost('two') from None",
            ["Lost: one", "OSError: reset by peer"],
        ),
        ("raise Lost('gave up') from ValueError('why')", ["ValueError: why", "OSError: reset by peer"]),
        ("error.__context__ = error\n    raise error", []),
        (
            "import sys\n    try:\n        raise Lost from None\n    except Lost:\n        sys.exit(3)",
            ["OSError: reset by peer"],
        ),
    ],
    ids=["from none", "from it", "while it", "twice", "from another", "itself", "exits"],
)
def test_what_an_exception_was_raised_from_is_left_also_where_it_is_not_printed(
    tmp_path: Path, raises: str, behind: list[str]
) -> None:
    lost = "class Lost(Exception): pass\ntry:\n    raise OSError('reset by peer')\nexcept OSError as error:\n"

    done = Done(tmp_path, f"{lost}    {raises}\n")

    assert done.raised is not None
    assert [f"{exception.kind}: {exception.message}" for exception in done.raised.behind] == behind


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups are Python 3.11's")
def test_behind_an_exception_stand_the_members_of_a_group_too(tmp_path: Path) -> None:
    done = Done(
        tmp_path,
        "try:\n    raise ExceptionGroup('all', [OSError('reset by peer'), KeyError(1)])\n"
        "except ExceptionGroup:\n    raise ValueError from None\n",
    )

    assert done.raised is not None
    assert [exception.kind for exception in done.raised.behind] == ["ExceptionGroup", "OSError", "KeyError"]


def test_of_a_long_chain_the_nearest_are_left(tmp_path: Path) -> None:
    chain = "error = None\nfor number in range(2000):\n    after = ValueError('x' * 10000 + str(number))\n"
    done = Done(tmp_path, chain + "    after.__context__, error = error, after\nraise error from None\n")

    assert done.raised is not None
    assert 0 < len(done.raised.behind) < 100
    assert all(len(exception.message) <= 1024 for exception in done.raised.behind)
    assert done.raised.kind == "ValueError"


def test_a_subclass_of_keyboardinterrupt_ends_python_with_1_and_is_left(tmp_path: Path) -> None:
    program = "class Stop(KeyboardInterrupt): pass\nraise Stop('no quota')\n"

    done = Done(tmp_path, program, leads=True)

    assert done.status == 1
    assert done.raised is not None
    assert (done.raised.kind, done.raised.message) == ("Stop", "no quota")


@pytest.mark.parametrize(
    "error",
    ["GeneratorExit('x')", "BaseExceptionGroup('x', [KeyboardInterrupt()])", "type('Own', (BaseException,), {})('x')"],
)
def test_what_ends_python_with_1_is_left_whatever_its_base(tmp_path: Path, error: str) -> None:
    done = Done(tmp_path, f"raise {error}\n", leads=True)

    assert done.status == 1
    assert done.raised is not None
    assert done.raised.kind != "SystemExit"
    assert done.raised.message.startswith("x")


def test_frames_are_left_innermost_first_and_a_file_that_calls_itself_counts_once(tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text("def down(n):\n    if n:\n        down(n - 1)\n    else:\n        {}['x']\n")
    program = "import deep\ndef main():\n    deep.down(500)\nmain()\n"

    done = Done(tmp_path, program)

    assert done.raised is not None
    assert done.raised.frames == (f"{tmp_path}/deep.py:5 in down", f"{tmp_path}/script.py:3 in main")


CHAIN = """
try:
    try:
        try:
            {}['first']
        except KeyError as error:
            raise OSError('second') from error
    except OSError:
        raise ValueError('third')
except ValueError as error:
    raise RuntimeError('last') HOW
"""


@pytest.mark.parametrize(
    ("how", "links"),
    [
        ("from error", [("ValueError", "cause"), ("OSError", "context"), ("KeyError", "cause")]),
        ("", [("ValueError", "context"), ("OSError", "context"), ("KeyError", "cause")]),
        ("from None", [("ValueError", ""), ("OSError", ""), ("KeyError", "")]),
    ],
)
def test_a_chain_is_left_as_python_prints_it(tmp_path: Path, how: str, links: list[tuple[str, str]]) -> None:
    done = Done(tmp_path, CHAIN.replace("HOW", how))

    assert done.raised is not None
    assert [(exception.kind, exception.link) for exception in done.raised.behind] == links
    assert done.raised.behind[2].frames == (f"{tmp_path}/script.py:5 in <module>",)


def test_of_a_long_chain_the_first_one_is_left(tmp_path: Path) -> None:
    program = (
        "def f(n):\n"
        "    try:\n        f(n - 1) if n else {}['first']\n"
        "    except LookupError as error:\n        raise IndexError(n) from error\n"
        "f(100)\n"
    )

    done = Done(tmp_path, program)

    assert done.raised is not None
    assert len(done.raised.behind) <= 17
    linked = [exception for exception in done.raised.behind if exception.link]
    assert (linked[0].message, linked[-1].kind) == ("99", "KeyError")


@pytest.mark.parametrize("text", ["True", "False"])
def test_what_a_failed_command_wrote_is_left_if_it_was_captured(tmp_path: Path, text: str) -> None:
    command = "import sys; sys.stderr.write('x' * 9000 + 'no table\\n'); sys.exit(4)"
    run = f"subprocess.run([sys.executable, '-c', {command!r}], check=True, capture_output=True, text={text})\n"

    done = Done(tmp_path, "import subprocess, sys\n" + run)

    assert done.raised is not None
    assert done.raised.captured_output.endswith("xno table\n")
    assert len(done.raised.captured_output) == 4096


def test_a_child_names_the_process_that_started_it(tmp_path: Path) -> None:
    program = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'raise ValueError(7)'])\n"

    done = Done(tmp_path, program)

    (left,) = pages.read_raised_by_others(done.status_folder, {done.pid})
    assert (left.kind, left.parent) == ("ValueError", done.pid)
    assert done.files == [f"raised-{left.pid}.json"]
