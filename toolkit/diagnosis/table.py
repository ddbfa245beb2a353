"""All rules, one row each. A rule is a function in one file and its row here."""

from toolkit.diagnosis import (
    bottleneck,
    gpu,
    host,
    loader,
    loss,
    slow_rank,
    slowdown,
    start_up,
    step_outliers,
    step_parts,
    step_rules,
    threads,
    usage,
)
from toolkit.diagnosis.rule import DiagnosisRule, Group, RuleFunction, RuleParameters


def _row(
    group: Group, name: str, parameters: type[RuleParameters], find: RuleFunction, *, default: bool = True
) -> DiagnosisRule:
    return DiagnosisRule(name=name, group=group, parameters=parameters, find=find, default=default)


# `default=False`: only where the job names the rule, since what it calls a fault a healthy job may do.
RULES: tuple[DiagnosisRule, ...] = (
    _row("profiler", "BatchSize", gpu.BatchSize, gpu.batch_size),
    _row("profiler", "CPUBottleneck", bottleneck.CPUBottleneck, bottleneck.cpu_bottleneck),
    _row("profiler", "Dataloader", loader.Dataloader, loader.dataloader),
    _row("profiler", "GPUMemoryIncrease", gpu.GPUMemoryIncrease, gpu.gpu_memory_increase),
    _row("profiler", "IOBottleneck", bottleneck.IOBottleneck, bottleneck.io_bottleneck),
    _row("profiler", "LoadBalancing", gpu.LoadBalancing, gpu.load_balancing),
    _row("profiler", "LowGPUUtilization", gpu.LowGPUUtilization, gpu.low_gpu_utilization),
    _row("profiler", "MaxInitializationTime", step_rules.MaxInitializationTime, step_rules.max_initialization_time),
    _row("profiler", "OverallSystemUsage", RuleParameters, usage.find_nothing),
    _row("profiler", "OverallFrameworkMetrics", RuleParameters, usage.find_nothing),
    _row("profiler", "StepOutlier", step_outliers.StepOutlier, step_outliers.step_outlier),
    _row("toolkit", "BusyCore", bottleneck.BusyCore, bottleneck.busy_core),
    _row("toolkit", "CPUThrottling", host.CPUThrottling, host.cpu_throttling),
    _row("toolkit", "CheckpointTime", step_parts.CheckpointTime, step_parts.checkpoint_time),
    _row("toolkit", "CoreContention", threads.CoreContention, threads.core_contention),
    _row("toolkit", "DataWait", loader.DataWait, loader.data_wait),
    _row("toolkit", "DriverSilence", host.DriverSilence, host.driver_silence),
    _row("toolkit", "EvaluationTime", step_parts.EvaluationTime, step_parts.evaluation_time),
    _row("toolkit", "FirstStep", step_parts.FirstStep, step_parts.first_step),
    _row("toolkit", "GarbageCollection", step_parts.GarbageCollection, step_parts.garbage_collection),
    _row("toolkit", "IdleSM", gpu.IdleSM, gpu.idle_sm),
    _row("toolkit", "MemoryLimit", host.MemoryLimit, host.memory_limit),
    _row("toolkit", "NetworkImports", start_up.NetworkImports, start_up.network_imports),
    _row("toolkit", "RequirementsTime", start_up.RequirementsTime, start_up.requirements_time),
    _row("toolkit", "SlowRank", slow_rank.SlowRank, slow_rank.slow_rank),
    _row("toolkit", "StepPause", step_parts.StepPause, step_parts.step_pause),
    _row("toolkit", "StepAlternation", step_rules.StepAlternation, step_rules.step_alternation),
    _row("toolkit", "StepSlowdown", slowdown.StepSlowdown, slowdown.step_slowdown),
    _row("loss", "ExplodingTensor", loss.ExplodingTensor, loss.exploding_tensor),
    _row("loss", "LossNotDecreasing", loss.LossNotDecreasing, loss.loss_not_decreasing, default=False),
    _row("loss", "Overfit", loss.Overfit, loss.overfit, default=False),
    _row("loss", "Overtraining", loss.Overtraining, loss.overtraining, default=False),
    _row("loss", "StalledTrainingRule", loss.StalledTraining, loss.stalled_training, default=False),
)
BY_NAME = {rule.name: rule for rule in RULES}
