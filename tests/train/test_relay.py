"""A script's output reaches the console and the files (checklist 55, 57-60)."""

import hashlib
import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from tests.train.base import TRAIN, Base
from tests.train.live import live

HALVES = """
import os, sys, time
cafe = "caf\\u00e9\\n".encode()
for half in (b"loss=", b"0.5\\n", cafe[:4], cafe[4:], b"\\xff\\xfe\\x00\\n", b"  blanks  \\n", b"\\n\\n"):
    os.write(1, half)
    time.sleep(0.05)
os.write(2, b"to stderr\\n")
os.write(1, b"no newline at the end")
"""


def test_bytes_pass_unaltered_and_each_stream_stays_itself(base: Base) -> None:
    base.program(HALVES)

    done = base.train()

    assert done.stdout == b"loss=0.5\ncaf\xc3\xa9\n\xff\xfe\x00\n  blanks  \n\n\nno newline at the end"
    assert b"to stderr\n" in done.stderr


def test_half_a_line_reaches_the_metrics_only_when_it_is_whole(base: Base) -> None:
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    base.program("import os, time\nos.write(1, b'loss=1'); time.sleep(0.5); os.write(1, b'2.5\\n')\n")

    base.train()

    samples = [json.loads(line) for line in (base.output / "metrics.jsonl").read_text().splitlines()]
    assert [sample["value"] for sample in samples] == [12.5]


def test_a_progress_bar_is_live_on_the_console(base: Base) -> None:
    base.program(
        "import os, sys, time\n"
        "sys.stderr.write('\\r 10%'); sys.stderr.flush()\n"
        "while not os.path.exists('seen'): time.sleep(0.01)\n"
        "sys.stderr.write('\\r100%\\n')\n"
    )

    with live(base) as running:
        running.until(b"\r 10%")
        (base.code / "seen").touch()
        done = running.end()

    assert b"\r 10%\r100%\n" in done.stderr


@pytest.mark.parametrize("mebibytes", [3, 100])
def test_a_line_of_any_length_passes_in_bounded_memory(base: Base, mebibytes: int) -> None:
    base.program(
        "import sys\n"
        f"for n in range({mebibytes}): sys.stdout.write(str(n % 10) * (1 << 20))\n"
        "print()\nprint(open('/proc/%d/status' % __import__('os').getppid()).read(), file=sys.stderr)\n"
    )

    done = base.train()

    expected = b"".join(str(n % 10).encode() * (1 << 20) for n in range(mebibytes)) + b"\n"
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(expected).digest()
    assert any("above 1 MiB" in note for note in done.outcome["notes"])
    peak = re.search(rb"VmHWM:\s+(\d+) kB", done.stderr)
    assert peak is not None
    assert int(peak[1]) < 60_000


def test_windows_line_ends_are_no_part_of_a_line_and_metrics_that_were_not_captured_are_named_once(base: Base) -> None:
    definitions = {"loss": "loss=([0-9.]+)$", "acc": "acc=([0-9.]+)", "rate": "rate=(.*)$", "other": "other=(.)"}
    base.document("metric-definition-regex.json", definitions)
    base.program(r"print('loss=0.5\r\nacc: 0.75\r\nrate=1_000\r\nrate=12%\r')")

    done = base.train()

    samples = [json.loads(line) for line in (base.output / "metrics.jsonl").read_text().splitlines()]
    assert [(sample["name"], sample["value"]) for sample in samples] == [("loss", 0.5), ("rate", 1000.0)]
    unmatched = [line for line in done.stderr.decode().splitlines() if "metric" in line and " matched" in line]
    assert unmatched == [
        "[toolkit] warning: metric 'acc': acc=([0-9.]+) matched no line; the nearest: 'acc: 0.75'",
        "[toolkit] warning: metric 'rate': rate=(.*)$ matched once what is no number; the first line: 'rate=12%'",
        "[toolkit] warning: metric 'other': no line matched, and none was near. "
        "`toolkit metrics try LOG` tries regexes on a log.",
    ]


def test_lines_written_in_blocks_arrive_whole_and_their_metrics_are_right(base: Base) -> None:
    # 4096-byte blocks, as C's stdio writes into a pipe: sagemaker-training 5.1.4 lost and altered values here.
    base.document("metric-definition-regex.json", [{"Name": "loss", "Regex": "loss=([0-9.]+)"}])
    base.program(
        "import os\n"
        "text = ''.join(f'step {n} loss={n}.25 and some more words\\n' for n in range(4000)).encode()\n"
        "for at in range(0, len(text), 4096): os.write(1, text[at:at + 4096])\n"
    )

    base.train()

    samples = [json.loads(line) for line in (base.output / "metrics.jsonl").read_text().splitlines()]
    assert [sample["value"] for sample in samples] == [n + 0.25 for n in range(4000)]


def test_a_million_lines_arrive_all_and_in_order(base: Base) -> None:
    base.program("import sys\nfor n in range(0, 1_000_000, 1000): print('\\n'.join(map(str, range(n, n + 1000))))\n")

    done = base.train(deadline_s=120)

    assert done.stdout == b"".join(b"%d\n" % n for n in range(1_000_000))


def test_output_is_unbuffered_unless_the_user_set_it(base: Base) -> None:
    base.program("import os\nprint(os.environ['PYTHONUNBUFFERED'])\n")

    assert base.train().stdout == b"1\n"
    assert base.train(PYTHONUNBUFFERED="2").stdout == b"2\n"


def test_both_streams_into_one_pipe_keep_whole_lines(base: Base) -> None:
    base.program(
        "import os, threading\n"
        "def write(fd, word):\n"
        "    for n in range(2000):\n"
        "        line = (word * 50 + str(n) + '\\n').encode()\n"
        "        for at in range(0, len(line), 64): os.write(fd, line[at:at + 64])\n"
        "threads = [threading.Thread(target=write, args=a) for a in ((1, 'out'), (2, 'err'))]\n"
        "[t.start() for t in threads]\n[t.join() for t in threads]\n"
    )
    process = subprocess.run(
        TRAIN,
        env=base.environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=60,
        check=False,
    )
    script_lines = [line for line in process.stdout.decode().splitlines() if not line.startswith("[toolkit]")]

    assert sorted(script_lines) == sorted(f"{word * 50}{n}" for word in ("out", "err") for n in range(2000))


def test_a_terminal_gets_everything(base: Base) -> None:
    base.program("import sys\nfor n in range(5000): print(n)\nprint('to stderr', file=sys.stderr)\n")
    master, slave = pty.openpty()
    process = subprocess.Popen(TRAIN, env=base.environ(), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    output = b""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            piece = os.read(master, 4096)
        except OSError:
            break
        if not piece:
            break
        output += piece
    os.close(master)

    assert process.wait(60) == 0
    assert [line for line in output.decode().split("\r\n") if line.isdigit()] == [str(n) for n in range(5000)]
    assert "to stderr\r\n" in output.decode()


def test_a_reader_that_leaves_does_not_end_the_job(base: Base) -> None:
    base.program(
        "import os\nfor n in range(20000): print('line', n)\n"
        "open(os.environ['SM_OUTPUT_DATA_DIR'] + '/finished', 'w')\n"
    )
    process = subprocess.Popen(
        TRAIN, env=base.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()

    assert process.wait(60) == 0
    assert (base.output / "data/finished").exists()


def test_a_slow_reader_slows_the_script_and_loses_nothing(base: Base) -> None:
    base.program(
        "import sys\nfor n in range(200_000): print(n, 'x' * 50)\n"
        "print(open('/proc/%d/status' % __import__('os').getppid()).read(), file=sys.stderr)\n"
    )
    process = subprocess.Popen(
        TRAIN, env=base.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    output = b""
    while piece := os.read(process.stdout.fileno(), 1 << 14):
        output += piece
        if len(output) < 1 << 19:
            time.sleep(0.02)
    status = process.stderr.read()
    process.stdout.close()
    process.stderr.close()

    assert process.wait(60) == 0
    assert output == b"".join(b"%d %s\n" % (n, b"x" * 50) for n in range(200_000))
    peak = re.search(rb"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) < 60_000


def test_the_interpreter_of_the_script_is_the_one_that_runs_train(base: Base) -> None:
    base.program("import sys\nprint(sys.executable)\n")

    assert base.train().stdout.decode().strip() == sys.executable
