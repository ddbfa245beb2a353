import pytest

from toolkit.train.verdict.tail import last_lines, last_words, split_lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # A value with Windows line ends, in an error: nothing of it is overwritten.
        ("ValueError: no file 'a\r' in /data", "ValueError: no file 'a\\r' in /data"),
        ("torch.cuda.OutOfMemoryError: a\rb", "torch.cuda.OutOfMemoryError: a\\rb"),
        (
            "train.py: error: argument --lr: invalid float value: '3\r'",
            "train.py: error: argument --lr: invalid float value: '3\\r'",
        ),
        ("fatal: no branch a\rb", "fatal: no branch a\\rb"),
        ("ERROR: no a\rb", "ERROR: no a\\rb"),
        ("run.sh: 2: \r: not found", "run.sh: 2: \\r: not found"),
        ("run.sh: line 2: cd: /data\r: No such file", "run.sh: line 2: cd: /data\\r: No such file"),
        ("[rank1]: KeyError: 'a\rb'", "[rank1]: KeyError: 'a\\rb'"),
        ("ValueError: x\r", "ValueError: x"),
        # A bar.
        ("\r 10%|#  | 1/10\r 20%|## | 2/10", " 20%|## | 2/10"),
        ("epoch 1 error 0.5\repoch 2 error 0.4", "epoch 2 error 0.4"),
        ("\r 10%|#  | 1/10\rValueError: no data", "ValueError: no data"),
        ("1/2 loss 3\b\b\b\b\b\b\b\b\b\b2/2 loss 1", "2/2 loss 1"),
    ],
)
def test_a_bar_shows_its_last_state_and_an_error_all_of_itself(line: str, expected: str) -> None:
    assert split_lines(f"{line}\n".encode())[0] == expected
    assert last_lines(f"{line}\n".encode(), 1, 600) == expected.rstrip()


JAVA = """Exception in thread "main" java.lang.IllegalStateException: no shard 7
\tat T.load(T.java:1)
{frames}
Caused by: java.io.IOException: disk
\tat T.read(T.java:9)
\t... 12 more"""
NODE = """Error: no shard 7
    at load (/opt/ml/code/train.js:3:9)
{frames}

Node.js v20.20.2"""
JULIA = """ERROR: LoadError: no shard 7
Stacktrace:
 [1] load(shard::Int64)
   @ Main /opt/ml/code/train.jl:3
{frames}
in expression starting at /opt/ml/code/train.jl:7"""
GO = """panic: no shard 7

goroutine 1 [running]:
main.load(0x7)
\t/opt/ml/code/train.go:5 +0x1d
{frames}
exit status 2"""
RUBY = """train.rb:3:in 'load': no shard 7 (RuntimeError)
\tfrom train.rb:7:in 'main'
{frames}"""
CPP = """Error: no shard 7
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f in /lib/libc10.so)
{frames}"""


@pytest.mark.parametrize(
    ("printed", "frame", "lines_shown"),
    [
        (JAVA, "\tat java.base/jdk.internal.reflect.Method.invoke(Method.java:569)", (0, 1, 3, 4)),
        (NODE, "    at node:internal/process/execution:118:14", (0, 1)),
        (JULIA, " [2] top-level scope\n   @ ./array.jl:924 [inlined]", (0, 1, 2, 5)),
        (GO, "main.main()\n\t/opt/ml/code/train.go:9 +0x1d", (0, 2, 3, 6)),
        (RUBY, "\tfrom lib/x.rb:9:in 'call'", (0, 1)),
        (CPP, "frame #1: at::empty() + 0x1 (0x7f in /lib/libtorch.so)", (0, 1)),
    ],
    ids=["Java", "Node.js", "Julia", "Go", "Ruby", "C++"],
)
def test_a_long_stack_of_another_runtime_hides_neither_its_error_nor_the_first_frame(
    printed: str, frame: str, lines_shown: tuple[int, ...]
) -> None:
    output = printed.format(frames="\n".join([frame] * 20))

    words = last_words(f"loading\n{output}\n".encode(), 8, 600)

    assert words.splitlines() == ["loading", *(printed.splitlines()[index] for index in lines_shown)]


def test_lines_that_only_look_like_frames_stay() -> None:
    text = "2 GPUs at most\n at\n [1] 3 4\n [11] 5 6\n  1: no\n  2: no\n  from a to b"

    assert last_words(text.encode(), 8, 600) == text
