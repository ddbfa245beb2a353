"""`scripts/fuzz`: feed the toolkit what no sane platform, user or peer would, until time is up or something breaks.

A target is a hypothesis property: it raises where a promise is broken. Hypothesis makes the examples and shrinks the
one that breaks; the targets take turns, each with a new seed, which a finding names.
"""

import argparse
import faulthandler
import random
import sys
import time
import warnings
from collections.abc import Sequence

from hypothesis.errors import HypothesisWarning

from tests.fuzz import archives, documents, link, names, records, regexes, requirements
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    "documents": documents.documents_are_a_job_or_a_clear_error,
    "jobfiles": documents.job_files_are_a_job_or_a_clear_error,
    "archives": archives.nothing_of_an_archive_lands_outside,
    "regexes": regexes.definitions_neither_raise_nor_hang,
    "requirements": requirements.requirements_are_pips_to_judge,
    "names": names.names_stay_below_the_job,
    "processes": names.processes_have_any_name,
    "messages": link.a_hosts_messages_are_taken_or_refused,
    "records": records.pages_are_made_of_what_is_left,
    "strangers": link.strangers_cost_the_link_a_line_each_kind,
}
EXAMPLES = 60
HANG_S = 120.0
NOTE_CHARACTERS = 4000


def main(words: Sequence[str]) -> int:
    """Run the targets until the time is over; return 1 if one found something."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (600)")
    parser.add_argument("--targets", default=",".join(TARGETS), help=f"which: {','.join(TARGETS)} (all)")
    parser.add_argument("--seed", type=int, help="the first seed; with one target, that of a finding")
    args = parser.parse_args(words)
    chosen = args.targets.split(",")
    if unknown := set(chosen) - set(TARGETS):
        parser.error(f"expected targets among {','.join(TARGETS)}, found {','.join(sorted(unknown))}")
    warnings.simplefilter(
        "ignore", HypothesisWarning
    )  # Of an example whose text is long: no finding, even with -W error.
    first = random.SystemRandom().randrange(1 << 32) if args.seed is None else args.seed
    counts = dict.fromkeys(chosen, 0)
    took_s = dict.fromkeys(chosen, 0.0)
    ends_s = time.monotonic() + args.seconds
    number = first
    print(f"fuzz: seeds from {first} on", flush=True)
    while time.monotonic() < ends_s or not all(counts.values()):  # Each target is played once at least.
        name = min(chosen, key=lambda target: took_s[target])
        began_s = time.monotonic()
        faulthandler.dump_traceback_later(HANG_S, exit=True)  # A promise that hangs is broken, too.
        try:
            TARGETS[name].play(number, EXAMPLES)
        except Exception as error:
            # Hypothesis notes the example: an archive may have 50 kB.
            vars(error)["__notes__"] = [note[:NOTE_CHARACTERS] for note in vars(error).get("__notes__", ())]
            print(f"\nfuzz: a finding of {name}; to see it again: scripts/fuzz --targets {name} --seed {number}\n")
            raise
        faulthandler.cancel_dump_traceback_later()
        took_s[name] += time.monotonic() - began_s
        counts[name] += EXAMPLES
        number += 1
    for name, count in counts.items():
        print(f"fuzz: {name}: {count:,} examples in {took_s[name]:.0f} s")
    print(f"fuzz: seeds {first} to {number - 1}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
