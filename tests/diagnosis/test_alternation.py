"""The iteration log of a published training job (two A100 GPUs), in which every other backward pass took four times
as long: the loader had no workers."""

from pathlib import Path

from tests.diagnosis.made import START_S, find_by_rule
from toolkit.diagnosis.evidence import MachineFacts
from toolkit.diagnosis.window import EvidenceWindow
from toolkit.metrics import capture, definition, presets

LOG = Path(__file__).parent.parent / "data" / "diagnosis" / "iterations.log"


def test_the_alternating_backward_pass_of_the_log_is_found() -> None:
    definitions = definition.compile(presets.definitions("iteration-times", "here"), "presets")
    metrics = capture.MetricCapture(definitions, warn=lambda text: None)
    window = EvidenceWindow([], host="algo-1", start_s=START_S, interval_s=0.5, machine=MachineFacts())
    for number, line in enumerate(LOG.read_bytes().splitlines(keepends=True)):
        for sample in metrics.lines(line, host="algo-1", rank=0, now_s=START_S + 20 * number):
            window.metric(sample.name, sample.value, sample.time_s, sample.rank, sample.step)

    findings = find_by_rule(window.evidence(START_S + 120, is_over=True))

    assert findings.keys() == {"StepAlternation"}
    finding = findings["StepAlternation"]
    assert (finding.subject, finding.text) == (
        "backward",
        "The backward time alternates with a period of 2 steps: 8.31 s / 29.9 s, 3.6 times as long. At the short time a"
        " step would take 10.8 s less on average.",
    )
    assert finding.note == "The job had 6 steps: patience was scaled from 20 steps to 6."
    assert "torch.cuda.synchronize()" in finding.change
