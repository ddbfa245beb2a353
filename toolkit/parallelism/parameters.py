"""The parameters of SageMaker's model parallel library, release 1: names, defaults, ranges.

The platform hands them over as the hyperparameter `mp_parameters`, and the script as the variable SM_HP_MP_PARAMETERS:
a JSON object (sagemaker-python-sdk 2, distribution.smdistributed.modelparallel.parameters; the library's API
reference).
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from toolkit.errors import ContractError, did_you_mean
from toolkit.parallelism.placement import parse_strategy
from toolkit.records import Record, convert

VARIABLE = "SM_HP_MP_PARAMETERS"
SCRIPT = "smp.init(config)"
# The second name of a parameter. The library took both names, but one value; AWS's examples use those with an
# underscore.
SYNONYMS = {
    "pipeline_parallel_degree": "partitions",
    "_prescaled_batch": "prescaled_batch",
    "_match_weights": "match_weights",
    "_fp32_grad_accumulation": "fp32_grad_accumulation",
}


class Parameters(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of one job; the attributes have the library's names, since scripts read them (smp.state.cfg).

    docs/modelparallel.md describes them for users.
    """

    partitions: int
    """The number of parts of the model."""
    microbatches: int = 1
    """The number of parts into which each batch is split."""
    pipeline: Literal["interleaved", "simple"] = "interleaved"
    """The order of passes: backward passes between forward passes, or all of them at the end."""
    optimize: Literal["memory", "speed"] = "memory"
    """The default of `memory_weight`: 0.8 for memory, 0.2 for speed."""
    placement_strategy: str = "cluster"
    """"cluster", "spread" or an order of the letters D, P and T (placement.py)."""
    auto_partition: bool = True
    """True: the toolkit assigns modules to partitions; False: the script does."""
    default_partition: int | None = None
    """The partition of modules that the script assigns to none."""
    partition_file: str = ""
    """The toolkit's own: the path of a partition decision that the job follows (decision.py)."""
    # TensorFlow's.
    contiguous: bool = True
    """No partition gets modules both before and after those of another (TensorFlow)."""
    horovod: bool = False
    """The model has replicas, over which gradients are averaged (TensorFlow)."""
    # PyTorch's.
    ddp: bool = False
    """True with replicas or tensor parallelism: gradients are averaged (PyTorch)."""
    memory_weight: float | None = None
    """The weight of memory beside time, 0 to 1; never None after `read`."""
    active_microbatches: int | None = None
    """The most microbatches in flight; never None after `read`."""
    deterministic_server: bool = False
    """Each rank works in the order of the first step of the same kind."""
    offload_activations: bool = False
    """Checkpointed activations are kept in the memory of the host."""
    activation_loading_horizon: int = 4
    """The number of offloaded activations that are loaded ahead."""
    tensor_parallel_degree: int = 1
    """The number of ranks that share the tensors of a layer."""
    fp16: bool = False
    """Train in float16."""
    fp16_params: bool = False
    """The former name of `fp16`."""
    bf16: bool = False
    """Train in bfloat16."""
    shard_optimizer_state: bool = False
    """Each replica holds the optimizer's state of some parameters, and updates those for all."""
    prescaled_batch: bool = False
    """All tensor parallel ranks read the same samples."""
    skip_tracing: bool = False
    """Partition by the sizes of parameters, without a profiling pass."""
    sharded_data_parallel_degree: int = 1
    """The number of replicas over which parameters are sharded."""
    sdp_reduce_bucket_size: float = 5e8
    """The elements of a bucket of gradients."""
    sdp_param_persistence_threshold: float = 1e6
    """Parameters with fewer elements are not divided."""
    sdp_max_live_parameters: float = 1e9
    """The most gathered elements at once."""
    sdp_hierarchical_allgather: bool = True
    """Of AWS\'s runtime: other values have no effect here."""
    sdp_gradient_clipping: float = 1.0
    """The norm to which gradients are clipped."""
    ddp_dist_backend: Literal["auto", "nccl"] = "auto"
    """auto: gloo on CPU, NCCL on CUDA."""
    fast_mode: bool = False
    """Of AWS\'s runtime: other values have no effect here."""
    static_mode: bool = False
    """Of AWS\'s runtime: other values have no effect here."""
    delayed_parameter_initialization: bool = False
    """smp.model_creation delays the initial values (PyTorch)."""
    match_weights: bool = False
    """A registered class must be able to take the values of the module that it replaces."""
    checkpoint_attentions: bool = False
    """Of AWS\'s runtime: other values have no effect here."""
    fp32_grad_accumulation: bool = False
    """In fp16 and bf16, accumulate and average gradients in float32."""
    overlapping_allreduce: bool = True
    """Of AWS\'s runtime: other values have no effect here."""

    @property
    def pipeline_parallel_degree(self) -> int:
        """The number of partitions."""
        return self.partitions

    @property
    def model_parallel_degree(self) -> int:
        """Ranks that hold one copy of the model: partitions x tensor parallel degree."""
        return self.partitions * self.tensor_parallel_degree


def read(parameters: Mapping[str, Any], source: str = VARIABLE) -> Parameters:
    """Return *parameters*, the decoded JSON object, with every default filled in; *source* names it in errors.

    Numbers and booleans may be spelled as text ("2", "true"), as hyperparameters often are.

    Raises:
        ContractError: an unknown name, a value of the wrong type or out of range, or two that exclude each other.
    """
    return _build(_with_field_names(parameters, source), source)


class Difference(NamedTuple):
    """A parameter for which the job and the script have different values."""

    name: str
    job: Any
    script: Any


def merge(job: Mapping[str, Any], script: Mapping[str, Any]) -> tuple[Parameters, tuple[Difference, ...]]:
    """Return the parameters of a *job*, completed by those of its *script* (smp.init(config)), and their differences.

    Where both name a parameter, the job's value holds.

    Raises:
        ContractError: as `read`, of either, or of both together.
    """
    job_values, script_values = _with_field_names(job, VARIABLE), _with_field_names(script, SCRIPT)
    differences = tuple(
        Difference(name, job_values[name], script_values[name])
        for name in script_values
        if name in job_values and str(job_values[name]).lower() != str(script_values[name]).lower()
    )
    if "fp16" in job_values or "fp16_params" in job_values:  # Two names of one choice, which is true if one of them is.
        script_values = {name: value for name, value in script_values.items() if name not in ("fp16", "fp16_params")}
    source = VARIABLE if not script_values else SCRIPT if not job_values else f"{VARIABLE} and {SCRIPT}"
    return _build({**script_values, **job_values}, source), differences


def _with_field_names(parameters: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return *parameters* under the names of Parameters' fields."""
    known_names = {field.name for field in msgspec.structs.fields(Parameters)} | set(SYNONYMS)
    for name in parameters:
        if name not in known_names:
            raise ContractError(
                f"expected a parameter of the model parallel library, found {name!r}",
                where=source,
                hint=did_you_mean(name, known_names)
                or "docs/modelparallel.md lists them (toolkit docs modelparallel).",
            )
    values = dict(parameters)
    for name, field in SYNONYMS.items():
        if name in values:
            value = values.pop(name)
            if values.setdefault(field, value) != value:
                raise ContractError(
                    f"expected one value, found {field} {values[field]} and {name} {value}, which mean the same",
                    where=source,
                    hint="Remove one of them.",
                )
    return values


def _build(values: Mapping[str, Any], source: str) -> Parameters:
    if "partitions" not in values:
        raise ContractError(
            "expected partitions (or pipeline_parallel_degree), the number of parts of the model, found neither",
            where=source,
            hint='Add it, for example "partitions": 2.',
        )
    _check_choices(values, source)
    cfg = convert(values, Parameters, source, strict=False, hint="docs/modelparallel.md lists the parameters.")
    _check_ranges(cfg, source)
    weight = {"memory": 0.8, "speed": 0.2}[cfg.optimize] if cfg.memory_weight is None else cfg.memory_weight
    active = cfg.partitions + 2 if cfg.active_microbatches is None else cfg.active_microbatches
    is_fp16 = cfg.fp16 or cfg.fp16_params  # The library's release 1.10 renamed it.
    return msgspec.structs.replace(cfg, memory_weight=weight, active_microbatches=active, fp16=is_fp16)


def _check_choices(values: Mapping[str, Any], source: str) -> None:
    for name, kind in get_type_hints(Parameters).items():
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        if choices and name in values:
            _expect(values[name] in choices, source, name, " or ".join(choices), values[name])


def _check_ranges(cfg: Parameters, source: str) -> None:
    for name in ("partitions", "microbatches", "tensor_parallel_degree", "sharded_data_parallel_degree"):
        _expect(getattr(cfg, name) >= 1, source, name, "1 or more", getattr(cfg, name))
    if cfg.active_microbatches is not None:
        _expect(cfg.active_microbatches >= 1, source, "active_microbatches", "1 or more", cfg.active_microbatches)
    if cfg.memory_weight is not None:
        _expect(0 <= cfg.memory_weight <= 1, source, "memory_weight", "a number from 0 to 1", cfg.memory_weight)
    if cfg.default_partition is not None:
        is_in_range = 0 <= cfg.default_partition < cfg.partitions
        _expect(is_in_range, source, "default_partition", f"0 to {cfg.partitions - 1}", cfg.default_partition)
    if not cfg.auto_partition and cfg.default_partition is None:
        raise ContractError(
            "expected default_partition, because auto_partition is false, found none",
            where=source,
            hint="Give the partition of what the script assigns to none, for example 0.",
        )
    parse_strategy(cfg.placement_strategy, source)
    for first, second in _conflicts(cfg):
        raise ContractError(
            f"expected {first} or {second}, which do not work together, found both",
            where=source,
            hint=HINTS.get((first, second), "Remove one of them."),
        )


# The reason why two parameters exclude each other although AWS's library takes both.
HINTS = {
    ("sharded_data_parallel_degree", "tensor_parallel_degree"): "Each divides the parameters, and a checkpoint and the "
    "optimizer's state know one way to put them together again. Keep sharded_data_parallel_degree, which lowers the "
    "memory of every model (multiply it by the other degree), and remove tensor_parallel_degree; or the reverse, with "
    "shard_optimizer_state.",
}


def _conflicts(cfg: Parameters) -> list[tuple[str, str]]:
    """Return the pairs of parameters in *cfg* that exclude each other."""
    sharded = "sharded_data_parallel_degree"
    pairs = (
        ("fp16", cfg.fp16 or cfg.fp16_params, "bf16", cfg.bf16),
        (sharded, cfg.sharded_data_parallel_degree > 1, "several partitions", cfg.partitions > 1),
        (sharded, cfg.sharded_data_parallel_degree > 1, "tensor_parallel_degree", cfg.tensor_parallel_degree > 1),
        (sharded, cfg.sharded_data_parallel_degree > 1, "shard_optimizer_state", cfg.shard_optimizer_state),
    )
    return [(first, second) for first, has_first, second, has_second in pairs if has_first and has_second]


def _expect(holds: bool, source: str, name: str, expected: str, value: object) -> None:
    if not holds:
        raise ContractError(
            f"expected {expected} for {name}, found {value!r}", where=source, hint="Correct the parameter."
        )
