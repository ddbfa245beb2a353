import pytest

from toolkit.commands.simulate.ignore import is_ignored, patterns


@pytest.mark.parametrize(
    ("text", "left_out", "included"),
    [
        ("data", ["data", "deep/data"], ["data.py", "mydata", "deep/data/x"]),
        ("/data", ["data"], ["deep/data"]),
        ("data/", ["data/", "deep/data/"], ["data"]),
        ("*.bin", ["a.bin", "deep/er/b.bin", ".bin"], ["a.bin.py"]),
        ("runs/*.log", ["runs/a.log"], ["deep/runs/a.log", "runs/deep/a.log", "a.log"]),
        ("**/cache", ["cache", "a/b/cache"], ["caches"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z"], ["z", "b/z"]),
        ("a/**", ["a/b", "a/b/c"], ["a/", "a"]),
        ("?.txt", ["a.txt"], ["ab.txt", "a/b.txtx"]),
        ("*.pt\n!best.pt", ["a.pt", "x/b.pt"], ["best.pt", "x/best.pt"]),
        ("# data\n\n  \n/\n!\n", [], ["data", "# data"]),
        ("a+b(c)", ["a+b(c)"], ["aab(c)"]),
        ("[x]", ["x"], ["[x]"]),
        ("[a-c].t[!x^]t", ["a.tat", "d/c.tat"], ["d.tat", "a.txt", "a.t^t"]),
        ("a[!b]c", ["axc"], ["a/c", "abc"]),
        ("[]x]\n[\n[z-a]\n[&&]~", ["]", "x", "[", "&~"], ["a", "-"]),
        ("\\#x\n\\!y\na\\*b", ["#x", "!y", "a*b"], ["x", "y", "axb"]),
    ],
)
def test_a_pattern_leaves_out_what_gitignores_does(text: str, left_out: list[str], included: list[str]) -> None:
    rules = patterns(text)

    for name in (*left_out, *included):
        ignored = is_ignored(rules, name.rstrip("/"), is_folder=name.endswith("/"))
        assert ignored is (name in left_out), name
