"""scripts/conformance: the cases against sagemaker-training 5.1.4 and this toolkit (docs/lab/conformance.md)."""

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.conformance import table
from tests.conformance.cases import CASES, JOBS, RECORDED
from tests.conformance.running import Side


def main(words: Sequence[str]) -> int:
    """Run what *words* ask for; 1 if a case is worse."""
    parser = argparse.ArgumentParser(prog="scripts/conformance")
    parser.add_argument("--only", help="jobs whose name has this text")
    parser.add_argument("--write", action="store_true", help="write docs/lab/conformance.md and the recording of 5.1.4")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at a time (default: 2)")
    args = parser.parse_args(words)
    names = [name for name in JOBS if args.only is None or args.only in name]
    with ThreadPoolExecutor(args.jobs) as pool:
        both = dict(
            zip(
                names,
                pool.map(lambda name: [JOBS[name].run(Side(is_ours)) for is_ours in (False, True)], names),
                strict=True,
            )
        )
    results: list[tuple[table.Case, Any, Any]] = []
    for case in CASES:
        if case.job in both:
            theirs, own_value = (json.loads(json.dumps(case.see(result))) for result in both[case.job])
            results.append((case, theirs, own_value))
    text = table.page(results)
    print(text)
    if args.write and args.only is None:
        table.write(table.PAGE, text)
        lines = {f"{case.point}: {case.title}": theirs for case, theirs, _ in results}
        RECORDED.write_text(json.dumps(lines, indent=1, sort_keys=True) + "\n")
    worse = [
        (case, theirs, toolkit_value)
        for case, theirs, toolkit_value in results
        if table.verdict(case, theirs, toolkit_value) == table.WORSE
    ]
    for case, theirs, own_value in worse:
        print(
            f"worse: {case.point} {case.title} ({case.job}):\n  5.1.4: {theirs!r}\n  ours:  {own_value!r}",
            file=sys.stderr,
        )
    return 1 if worse else 0


sys.exit(main(sys.argv[1:]))
