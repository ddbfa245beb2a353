"""The Debugger's rules that need only numbers, on the metrics that were captured from the log.

Parameters and defaults are those of smdebug's rules; `loss_metric` and `validation_metric` name the metrics, and
without them the first name of LOSS and VALIDATION that was captured is taken.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from toolkit.diagnosis.evidence import Evidence, Readings
from toolkit.diagnosis.numbers import mean, measured, median
from toolkit.diagnosis.rule import Above, Percent, Positive, RuleParameters, make_finding, number, percent
from toolkit.diagnosis.units import format_seconds
from toolkit.series.finding import Finding

LOSS = ("loss", "train_loss", "training_loss", "train:loss", "train/loss", "total_loss")
VALIDATION = (
    "val_loss",
    "validation_loss",
    "valid_loss",
    "eval_loss",
    "test_loss",
    "validation:loss",
    "val:loss",
    "eval/loss",
    "val/loss",
)
# Values whose median is the level of a loss.
LEVEL = 3
# A loss that grows also leaves its level at the start so far behind: else it was very low, and is not any more.
RISES = 10.0
# How many windows in a row must not decrease: the mean of one varies.
WINDOWS = 2


class OnLoss(RuleParameters, frozen=True, kw_only=True):
    """The names of the metrics that a rule on the loss reads."""

    loss_metric: str = ""
    """The captured metric; "" for the usual names."""
    validation_metric: str = ""
    """The captured metric; "" for the usual names."""
    collection_names: str | None = None
    """This field and those below are the SDK's ways to choose tensors. They have no meaning here."""
    tensor_regex: str = ""
    use_losses_collection: bool = True
    mode: str | None = None


class LossNotDecreasing(OnLoss, frozen=True, kw_only=True):
    """`num_steps`: steps of one window; percentages. smdebug's defaults."""

    num_steps: Positive = 10
    diff_percent: Percent = 0.1
    increase_threshold_percent: Percent = 5


class ExplodingTensor(OnLoss, frozen=True, kw_only=True):
    """`only_nan`: infinity and growth are no finding (smdebug's); `growth`: times its lowest level (ours)."""

    only_nan: bool = False
    growth: Above = 1000


class Overfit(OnLoss, frozen=True, kw_only=True):
    """`patience` in validations. smdebug's defaults."""

    start_step: int = 0
    patience: Positive = 1
    ratio_threshold: Above = 0.1


class Overtraining(OnLoss, frozen=True, kw_only=True):
    """Patiences in readings; `delta` as the loss. smdebug's defaults."""

    patience_train: Positive = 5
    patience_validation: Positive = 10
    delta: Above = 0.01


class StalledTraining(RuleParameters, frozen=True, kw_only=True):
    """`threshold` in seconds. smdebug's defaults; the prefix is not needed, since the rule runs within the job."""

    threshold: Above = 1800
    stop_training_on_fire: bool = False
    training_job_name_prefix: str = ""


def exploding_tensor(evidence: Evidence, parameters: ExplodingTensor, _: frozenset[str]) -> Iterator[Finding]:
    """A loss is NaN or infinite, or has grown `growth` times."""
    for name in _names(evidence, parameters, (*LOSS, *VALIDATION), every=True):
        for rank, readings in evidence.metrics[name].items():
            for index, value in enumerate(readings.value):
                if math.isfinite(value) or (parameters.only_nan and not math.isnan(value)):
                    continue
                of_rank = "" if rank is None else f" on rank {rank}"
                at_step = f" at step {readings.step[index]:.0f}" if math.isfinite(readings.step[index]) else ""
                yield make_finding(
                    "ExplodingTensor",
                    evidence,
                    None,
                    f"The metric {name} is {_spelled(value)}{at_step}{of_rank}, after"
                    f" {len(measured(readings.value[:index]))} finite values.",
                    subject=name,
                    start_s=readings.time_s[0],
                    end_s=readings.time_s[index],
                    numbers=(number("value before", _last(readings.value[:index]), "last finite"),),
                    refuted_by="A script that prints nan for steps without a loss.",
                    change="Lower the learning rate, clip gradients, and look for a division by zero or a log of zero;"
                    " with float16, use a GradScaler or bfloat16.",
                )
                return
    if not parameters.only_nan:
        yield from _grown(evidence, parameters)


def _grown(evidence: Evidence, parameters: ExplodingTensor) -> Iterator[Finding]:
    """Find a loss whose newest values are `growth` times the lowest ones, and far above the first."""
    for name in _names(evidence, parameters, (*LOSS, *VALIDATION), every=True):
        for rank, readings in evidence.metrics[name].items():
            values = list(map(abs, readings.value))
            if len(values) < 3 * LEVEL:
                continue
            levels = [median(values[start : start + LEVEL]) for start in range(len(values) - LEVEL + 1)]
            lowest, last = min(levels), levels[-1]
            if not 0 < parameters.growth * lowest <= last or not last >= RISES * levels[0]:
                continue
            began = max(index for index, level in enumerate(levels) if level <= 2 * lowest)
            of_rank = "" if rank is None else f" on rank {rank}"
            at_step = f" from step {readings.step[began]:.0f} on" if math.isfinite(readings.step[began]) else ""
            yield make_finding(
                "ExplodingTensor",
                evidence,
                None,
                f"The metric {name} rose {last / lowest:,.0f} times{of_rank}{at_step}, from {lowest:.3g} to"
                f" {last:.3g}.",
                subject=name,
                start_s=readings.time_s[began],
                end_s=readings.time_s[-1],
                numbers=(
                    number("growth", last / lowest, "last / lowest", limit=parameters.growth),
                    number("lowest", lowest, f"lowest median of {LEVEL} values in a row"),
                    number("last", last, f"median of the last {LEVEL} values"),
                ),
                refuted_by="A loss whose weights or units change while the job runs.",
                change="Lower the learning rate or warm it up, and clip gradients; go back to a checkpoint from before"
                " the rise.",
            )
            return


def loss_not_decreasing(evidence: Evidence, parameters: LossNotDecreasing, _: frozenset[str]) -> Iterator[Finding]:
    """The mean loss of `num_steps` steps is not `diff_percent` below the mean of those before, twice in a row."""
    name, readings = _first(evidence, parameters, parameters.loss_metric, LOSS)
    averages = _windows(readings, parameters.num_steps)
    changes = [100 * (earlier - later) / abs(earlier) for earlier, later in pairwise(averages) if earlier]
    if not changes:
        return
    rises = changes[-1] < -parameters.increase_threshold_percent
    stays = len(changes) >= WINDOWS and all(change < parameters.diff_percent for change in changes[-WINDOWS:])
    if not rises and not stays:
        return
    yield make_finding(
        "LossNotDecreasing",
        evidence,
        None,
        f"The metric {name} went from {averages[-2]:.4g} to {averages[-1]:.4g} (means of {parameters.num_steps} steps"
        f" each): {'it rises' if changes[-1] < 0 else 'it hardly falls'}.",
        subject=name,
        start_s=readings.time_s[0],
        end_s=readings.time_s[-1],
        numbers=(
            percent(
                "decrease",
                changes[-1],
                f"(mean of the {parameters.num_steps} steps before - mean of the newest) / before",
                limit=parameters.diff_percent,
            ),
        ),
        refuted_by="A loss that falls again over a longer window: noise, or a warm-up of the learning rate.",
        change="Check the learning rate and its schedule, and whether labels and inputs still belong together.",
    )


def overfit(evidence: Evidence, parameters: Overfit, _given: frozenset[str]) -> Iterator[Finding]:
    """The validation loss exceeds the training loss by more than `ratio_threshold` of it, `patience` times in a row."""
    _name, training = _first(evidence, parameters, parameters.loss_metric, LOSS)
    name, validation = _first(evidence, parameters, parameters.validation_metric, VALIDATION)
    ratios, before_s = [], -math.inf
    for time_s, value, step in zip(validation.time_s, validation.value, validation.step, strict=True):
        since = mean(
            train for at_s, train in zip(training.time_s, training.value, strict=True) if before_s < at_s <= time_s
        )
        before_s = time_s
        if since and math.isfinite(since) and math.isfinite(value) and not step < parameters.start_step:
            ratios.append((value - since) / abs(since))
    newest = ratios[-parameters.patience :]
    if len(newest) < parameters.patience or not all(ratio > parameters.ratio_threshold for ratio in newest):
        return
    yield make_finding(
        "Overfit",
        evidence,
        None,
        f"The metric {name} is {100 * newest[-1]:.0f} % above the training loss since the validation before it.",
        subject=name,
        start_s=validation.time_s[0],
        end_s=validation.time_s[-1],
        numbers=(
            number(
                "ratio",
                newest[-1],
                "(validation loss - mean training loss since the last validation) / that mean",
                limit=parameters.ratio_threshold,
            ),
        ),
        refuted_by="Two losses that are not comparable: regularisation, dropout or label smoothing in one alone.",
        change="Stop earlier (keep the best checkpoint), or use more data, augmentation, weight decay or dropout.",
    )


def overtraining(evidence: Evidence, parameters: Overtraining, _given: frozenset[str]) -> Iterator[Finding]:
    """The validation loss has not improved by `delta` for `patience_validation` readings; without one, the training
    loss for `patience_train`."""
    name, readings = _first(evidence, parameters, parameters.validation_metric, VALIDATION)
    patience = parameters.patience_validation
    if not readings.value:
        name, readings = _first(evidence, parameters, parameters.loss_metric, LOSS)
        patience = parameters.patience_train
    values = measured(readings.value)
    best, since = math.inf, 0
    for value in values:
        best, since = (value, 0) if value < best - parameters.delta else (best, since + 1)
    if not values or since < patience:
        return
    yield make_finding(
        "Overtraining",
        evidence,
        None,
        f"The metric {name} has not improved on {best:.4g} for {since} readings.",
        subject=name,
        start_s=readings.time_s[0],
        end_s=readings.time_s[-1],
        numbers=(
            number(
                "readings without improvement",
                since,
                f"since the last value more than {parameters.delta:g} below the best before it",
                limit=patience,
            ),
            number("best", best),
        ),
        refuted_by="A later, better value: a schedule that lowers the learning rate may still bring one.",
        change="Stop here and keep the best checkpoint, or lower the learning rate.",
    )


def stalled_training(evidence: Evidence, parameters: StalledTraining, _: frozenset[str]) -> Iterator[Finding]:
    """No step ended and no metric was printed for `threshold` seconds, after the first one."""
    moments = sorted(
        {
            *(end_s for steps in evidence.steps.values() for end_s in steps.end_s),
            *(at_s for ranks in evidence.metrics.values() for readings in ranks.values() for at_s in readings.time_s),
        }
    )
    if not moments:
        return  # Nothing is measured, so nothing can be missed. MaxInitializationTime is about the start.
    moments.append(max(evidence.end_s, moments[-1]))
    gap_s, start_s, end_s = max((later - earlier, earlier, later) for earlier, later in pairwise(moments))
    if not gap_s > parameters.threshold:
        return
    yield make_finding(
        "StalledTrainingRule",
        evidence,
        None,
        f"For {format_seconds(gap_s)} no step ended and no metric was printed.",
        subject="training",
        start_s=start_s,
        end_s=end_s,
        numbers=(
            number(
                "longest gap", gap_s, "between two ends of steps or metric lines", unit="s", limit=parameters.threshold
            ),
        ),
        refuted_by="Work that has no steps and prints nothing: preprocessing, evaluation, saving.",
        change="Read the stacks of the ranks (docs/hangs.md, TOOLKIT_STALL_S) and the end of the log.",
        lost_s=gap_s,
    )


def _names(evidence: Evidence, parameters: OnLoss, usual: Sequence[str], *, every: bool = False) -> list[str]:
    """Return the captured metrics to look at: those that the user named, else the usual ones."""
    metric_names = [name for name in (parameters.loss_metric, parameters.validation_metric) if name]
    if every and metric_names:
        return [name for name in metric_names if name in evidence.metrics]
    if parameters.tensor_regex:
        return [name for name in evidence.metrics if re.search(parameters.tensor_regex, name)]
    return [name for name in usual if name in evidence.metrics]


def _first(evidence: Evidence, parameters: OnLoss, metric_name: str, usual: Sequence[str]) -> tuple[str, Readings]:
    """Return the metric *metric_name* for, or the first usual one, of the first rank that has it."""
    name = next(
        iter(
            [metric_name]
            if metric_name in evidence.metrics
            else []
            if metric_name
            else _names(evidence, parameters, usual)
        ),
        "",
    )
    ranks = evidence.metrics.get(name, {})
    if not ranks:
        return name, Readings()
    return name, ranks[min(ranks, key=lambda rank: -1 if rank is None else rank)]


def _windows(readings: Readings, num_steps: int) -> list[float]:
    """Return the mean of each *num_steps* steps, the last one complete; by readings, where steps are not known."""
    values = list(readings.value)
    if all(math.isfinite(step) for step in readings.step) and values:
        last = readings.step[-1]
        places: dict[int, list[float]] = {}
        for step, value in zip(readings.step, values, strict=True):
            places.setdefault(int((last - step) // num_steps), []).append(value)
        return [mean(places[place]) for place in sorted(places, reverse=True)]
    first = len(values) % num_steps
    return [mean(values[start : start + num_steps]) for start in range(first, len(values), num_steps)]


def _last(values: Sequence[float]) -> float:
    finite = measured(values)
    return finite[-1] if finite else math.nan


def _spelled(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite"
