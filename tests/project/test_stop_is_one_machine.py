"""A stop is one type in every layer, and what decides about stopping is kept in one place."""

import ast
import importlib
import re
import typing
from pathlib import Path

from toolkit.job import events
from toolkit.train.peers import messages, protocol

TOOLKIT = Path(__file__).parents[2] / "toolkit"
# The machine, and its knowledge of the whole job, which nothing else changes.
MACHINE = ("stop_machine.py", "stop_job.py")
# The layers that a SIGTERM crosses.
CROSSED = ("job", "train")
# What the stop machine keeps. The same words in an object beside it would be a second opinion.
DECIDES = {
    "stop",
    "stopped",
    "stopping",
    "stopped_by",
    "stopped_here",
    "insisted",
    "last_stop",
    "state",
    "cause",
    "over",
    "settled",
    "job_ended",
    "peer_failed",
    "leader_done",
    "may_start",
    "launcher_first",
    "all_rested",
    "all_ranks_ended",
    "stays",
    "aborts",
    "unfinalized",
    "saving",
    "waiting_to_stop",
    "deadline_s",
    "ranks_end_s",
    "left_ends_s",
    "abort_ends_s",
    "late_s",
}

# Those of them that mean the stop itself: the others are states of a host's processes.
STOP_WORDS = {"stop", "stopped", "stopping", "stopped_by", "stopped_here", "insisted", "last_stop", "waiting_to_stop"}


def attributes(file: Path) -> set[str]:
    """Return the names that methods in *file* assign to self, without leading underscores."""
    return {
        node.attr.lstrip("_")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def classes_named(name: str) -> set[str]:
    """Return "package/file" of each class *name* in the layers that a stop crosses."""
    return {
        file.relative_to(TOOLKIT).as_posix()
        for layer in CROSSED
        for file in (TOOLKIT / layer).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name == name
    }


def test_a_stop_is_one_type_from_the_signal_pipe_to_the_machine_and_between_hosts() -> None:
    assert classes_named("Stop") == {"job/events.py"}
    for union in (messages.Up, messages.Down, protocol.Action, events.Heard, events.Event):
        assert events.Stop in typing.get_args(union)
    for module, name in (
        ("toolkit.train.supervise.stop_actions", "TellStop"),
        ("toolkit.train.supervise.link", "HostLink.tell_stop"),
        ("toolkit.train.coordinator", "Coordinator.tell_stop"),
        ("toolkit.train.peers.leader", "Leader._on_stop"),
        ("toolkit.train.supervise.stop_job", "JobState.note_stop"),
    ):
        target = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
        assert events.Stop in {
            hint for kind in typing.get_type_hints(target).values() for hint in (kind, *typing.get_args(kind))
        }, name


def test_no_flag_that_decides_about_stopping_lives_outside_the_machine() -> None:
    written = {
        file.name: decisions
        for file in (TOOLKIT / "train/supervise").glob("*.py")
        if file.name not in MACHINE and (decisions := attributes(file) & DECIDES)
    }

    # StopSignals, which the machine alone uses, tells new requests from repeated ones; Signals keeps the number of a
    # stop that comes before there is anything to stop.
    assert written == {"signals.py": {"insisted", "stop"}}


def test_the_ends_of_the_link_keep_of_a_stop_only_what_they_tell_other_hosts() -> None:
    """They know that the job stops: a host that vanishes then has not failed. They end no process: a layer below."""
    peers = sorted((TOOLKIT / "train/peers").glob("*.py"))
    words = {file.name: attributes(file) & STOP_WORDS for file in peers}

    assert {name: decisions for name, decisions in words.items() if decisions} == {
        "leader.py": {"stop"},
        "follower.py": {"stop"},
    }
    for file in peers:
        text = file.read_text(encoding="utf-8")
        assert "toolkit.train.supervise" not in text and "os.kill" not in text and "import subprocess" not in text, file


def test_the_words_that_are_looked_for_are_those_of_the_machine() -> None:
    decisions = {name for file in MACHINE for name in attributes(TOOLKIT / "train/supervise" / file)}

    assert {"stop", "cause", "peer_failed", "stays", "saving", "ranks_end_s", "launcher_first"} <= decisions & DECIDES


def test_only_the_machine_makes_and_feeds_its_knowledge_of_the_job() -> None:
    users = {
        file.name
        for file in (TOOLKIT / "train/supervise").glob("*.py")
        if re.search(r"\bJobState\(|\.job\.(note|note_stop)\(", file.read_text(encoding="utf-8"))
    }

    assert users == {"stop_machine.py"}


def test_one_poll_loop_waits() -> None:
    def users(word: str) -> set[str]:
        return {
            file.relative_to(TOOLKIT).as_posix()
            for layer in ("train/supervise", "train")
            for file in (TOOLKIT / layer).glob("*.py")
            if word in file.read_text(encoding="utf-8")
        }

    # The others wait for a console alone: outlet.py never (a look), console.py when nothing else is left to do; or, in
    # poll.py, for what a fork reports at the end of the job.
    assert users(" Poll()") == {
        "train/supervise/poll_loop.py",
        "train/supervise/console.py",
        "train/supervise/outlet.py",
        "train/supervise/poll.py",
    }
    assert users("select.poll(") == {"train/supervise/poll.py"}  # Sandboxes may deny poll(2).
