"""Patterns that are compiled when they are first used are right nevertheless, and are what re.compile returns."""

import re
import shlex
from importlib import import_module
from pathlib import Path

from toolkit import patterns
from toolkit.job.plan import quoted

ROOT = Path(patterns.__file__).parents[1]


def test_every_pattern_of_the_toolkit_compiles() -> None:
    files = [file for file in ROOT.glob("toolkit/**/*.py") if "import lazy" in file.read_text(encoding="utf-8")]
    modules = [import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    values = [value for module in modules for value in vars(module).values()]
    flat = [pattern for value in values for pattern in (value if isinstance(value, tuple) else (value,))]

    lazy = [pattern for pattern in flat if isinstance(pattern, patterns._Pattern)]

    assert len(lazy) > 40
    assert all(re.compile(pattern.pattern, pattern.flags) for pattern in lazy)


def test_a_lazy_pattern_does_what_a_compiled_one_does() -> None:
    lazy, compiled = patterns.lazy(r"(?P<name>\w+)=", re.I), re.compile(r"(?P<name>\w+)=", re.I)

    for _ in range(2):  # Compiled, and again as it is then.
        assert lazy.sub("x", "a=1 b=2") == compiled.sub("x", "a=1 b=2")
        assert [match["name"] for match in lazy.finditer("a=1 b=2")] == ["a", "b"]
    assert (lazy.pattern, lazy.flags, lazy.groups) == (compiled.pattern, compiled.flags, compiled.groups)


def test_tokens_are_quoted_as_shlex_quotes_them() -> None:
    tokens = ["", *map(chr, range(256)), "a b", "it's", "/opt/ml/code", "--name=value", "é", "a\nb"]

    assert [quoted(token) for token in tokens] == [shlex.quote(token) for token in tokens]
