"""The process that `sagemaker_training.entry_point.run` starts: it runs the script that a framework plug-in asks for.

It is a process of its own because it handles every signal and reaps every child, which a plug-in may have for itself.
Standard input is a file with a train/entry_point.py: ScriptRequest as JSON; a ScriptAnswer goes to the file whose
descriptor is the only argument.
"""

import json
import os
import sys

import msgspec

from toolkit.cli.streams import use_utf_8
from toolkit.log import Log
from toolkit.records import convert
from toolkit.train.supervise.signals import Signals


def main() -> None:
    """Run the script and exit with its code."""
    use_utf_8()
    with Signals(last=True) as signals:
        from toolkit.train.entry_point import ScriptRequest, answer
        from toolkit.train.walk import launch

        answers = int(sys.argv[1])
        os.set_inheritable(answers, False)
        request = convert(json.loads(sys.stdin.buffer.read()), ScriptRequest, "request")
        log = Log()
        outcome = launch(request, interpreter=sys.executable, log=log, signals=signals)
        content = json.dumps(msgspec.to_builtins(answer(outcome, log))).encode()  # msgspec's refuses bytes not UTF-8.
        while content:
            content = content[os.write(answers, content) :]
        sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()
