"""All TOOLKIT_* settings: type, default and meaning in one table, read once.

The field `grace_s` is the variable TOOLKIT_GRACE_S. docs/settings.md contains this table, as `table()` returns it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from toolkit.errors import ContractError, did_you_mean
from toolkit.patterns import lazy
from toolkit.records import Record, convert

PREFIX = "TOOLKIT_"
# Variables that `train` sets for its processes. They are not settings, and draw no warning when a rank runs `train`.
CHILD_VARIABLES = (
    "COLLECTIVES",
    "COMPAT_PATH",
    "COMPILER",
    "HOST_NAME",
    "JAX",
    "LOCAL_RANKS",
    "OUTPUT",
    "PACKAGES",
    "PROFILE_WINDOW",
    "PYTHON_EXEC",
    "RESTART_COUNT",
    "RUN_ID",
    "SHIM_SOCKET",
    "SMP_CHAIN",
    "SMP_PROFILE",
    "STACKS",
    "STATUS_FOLDER",
    "STEP_TIMES",
    "XLA",
)
ArgumentStyle = Literal["sagemaker", "json", "flags", "none"]
Switch = Literal["on", "off"]
MOST = 1_000_000  # The upper limit of every count: a larger number is a mistake.
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
# A host name: labels with dots between them; the last label is no number, as in an address.
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?"
_NAME = lazy(rf"(?:{_LABEL}\.)*(?![0-9]+\.?$){_LABEL}\.?")
MOST_OF_A_NAME = 255
# The upper limit, 115 days, is above every platform's limit for a job. It keeps "inf" out of the loop's timeouts.
Seconds = Annotated[float, msgspec.Meta(ge=0, le=10_000_000)]


def _meaning(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Settings(Record, frozen=True, kw_only=True):
    """The toolkit's settings. Times in seconds."""

    argument_style: Annotated[
        ArgumentStyle | None,
        _meaning(
            "form of the script's arguments: as sagemaker-training passes them, as SDK v3 does (json), flags, or none;"
            " default: json for jobs of SDK v3's ModelTrainer, sagemaker for others"
        ),
    ] = None
    processes_per_host: Annotated[
        Positive | None,
        _meaning("ranks on each host, if the job does not set it; default: one per GPU, else per Neuron core, else 1"),
    ] = None
    grace_s: Annotated[
        Seconds | None,
        _meaning(
            "time from SIGTERM to the script until SIGKILL; default: TOOLKIT_STOP_WITHIN_S less 10 s (40 s if files"
            " must be uploaded), or a third of it"
        ),
    ] = None
    join_s: Annotated[Seconds, _meaning("time to wait for the other hosts; after it, the job ends with 75")] = 900.0
    log_prefix: Annotated[
        Literal["auto", "off", "rank"],
        _meaning("rank: every line starts with [HOST rank N]; auto: rank if the job has several ranks, else off"),
    ] = "auto"
    log_progress: Annotated[
        Literal["auto", "lines", "live"],
        _meaning(
            "progress bars of several ranks; auto: live on a terminal, else lines; live: each state ends with \\r"
        ),
    ] = "auto"
    log_failure: Annotated[
        Literal["full", "brief"],
        _meaning("brief: the log says only that the job failed; output/failure has the cause (for toolkit run)"),
    ] = "full"
    log_files: Annotated[
        Literal["auto", "on", "off"],
        _meaning("a log file for each rank in output/data/logs; auto: if the job has more than one rank"),
    ] = "auto"
    log_file_mib: Annotated[
        Positive, _meaning("size at which such a log file is rotated, MiB; one older piece is kept")
    ] = 64
    monitor: Annotated[
        Literal["on", "off", "1", "0"] | None,
        _meaning(
            "the system monitor (docs/monitor.md): on or 1, off or 0; default: as job file or profilerconfig.json say,"
            " on under toolkit run, else off"
        ),
    ] = None
    monitor_interval_s: Annotated[
        Annotated[float, msgspec.Meta(ge=0.1, le=60)] | None,
        _meaning("seconds between two samples of the monitor; default: as profilerconfig.json says, else 0.5"),
    ] = None
    prometheus_port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None,
        _meaning("serve metrics for Prometheus on this port of each host (docs/metrics-out.md)"),
    ] = None
    prometheus_address: Annotated[str, _meaning("the address to serve them at; 127.0.0.1: to this host alone")] = (
        "0.0.0.0"
    )
    tensorboard: Annotated[
        Path | None,
        _meaning("write event files for TensorBoard into this folder; a relative one is below the output folder"),
    ] = None
    mlflow_tracking_uri: Annotated[str, _meaning("log metrics to this MLflow server or store")] = ""
    mlflow_experiment: Annotated[str, _meaning("the experiment of MLflow to log to")] = "Default"
    wandb_project: Annotated[str, _meaning("log metrics to this project of Weights & Biases")] = ""
    trackio_project: Annotated[str, _meaning("log metrics to this project of Trackio")] = ""
    otlp_endpoint: Annotated[
        str,
        _meaning("send metrics and spans to this OTLP/HTTP receiver, as http://collector:4318 (docs/opentelemetry.md)"),
    ] = ""
    tracker_run: Annotated[
        str,
        _meaning(
            "the ID of the job's run in MLflow, W&B, Trackio and OpenTelemetry; default: the job's name, under `toolkit"
            " run` and `toolkit torchrun` with an ending that each job has for itself"
        ),
    ] = ""
    metrics: Annotated[
        Path | None, _meaning("a JSON file of metric definitions that replaces metric-definition-regex.json")
    ] = None
    metric_presets: Annotated[
        str,
        _meaning("ready-made metric definitions that are added, comma-separated: iteration-times (docs/metrics.md)"),
    ] = ""
    rank_hook: Annotated[Switch, _meaning("the start-up hook in ranks (docs/rank-hook.md)")] = "on"
    profiler_rules: Annotated[
        str, _meaning("profiler rules of the job: JSON, or a file that holds them; default: all (docs/diagnosis.md)")
    ] = ""
    compat: Annotated[
        str,
        _meaning(
            "old import names for scripts: smddp, smp, smppy, torch_xla, comma-separated; off: none; default: those of"
            " the distribution"
        ),
    ] = ""
    profile: Annotated[
        str,
        _meaning(
            'what every rank traces (docs/profiler.md): "steps 10-20", counted from 1, or "seconds 60-75" of the rank'
        ),
    ] = ""
    compile: Annotated[
        Literal["on", "auto", "off"] | None,
        _meaning(
            "compile the models that train (docs/compiler.md): auto keeps the faster of compiled and eager; default:"
            " auto for jobs of the Training Compiler, else off"
        ),
    ] = None
    compile_budget_s: Annotated[
        Positive | None,
        _meaning(
            "seconds that compiling may take before the job goes on eager (docs/compiler.md); default: 60 for auto, no"
            " bound for on"
        ),
    ] = None
    compile_cache: Annotated[
        Path | None, _meaning("folder for compiled code, across jobs; default: compile-cache in the checkpoint folder")
    ] = None
    autocast: Annotated[
        Literal["bf16", "auto", "off"],
        _meaning("run the models that train in bfloat16 where it is safe (docs/compiler.md); auto: if it is faster"),
    ] = "off"
    smddp_launcher: Annotated[
        Literal["torchrun", "mpirun"],
        _meaning("launcher of distribution smddp if AWS's library is not installed (docs/smddp.md)"),
    ] = "torchrun"
    rank_shim: Annotated[
        Switch,
        _meaning("on: ranks are children of train (docs/supervision.md); off: of their launcher"),
    ] = "on"
    mpi_agent: Annotated[
        Literal["toolkit", "ssh"],
        _meaning(
            "program that starts mpirun's daemons on other hosts: train itself, over the link, or ssh (docs/mpi.md)"
        ),
    ] = "toolkit"
    link: Annotated[Switch, _meaning("the link between the train processes of a job's hosts (docs/link.md)")] = "on"
    link_port: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=65535)] | None,
        _meaning("the link's port on the leader; default: the rendezvous port (MASTER_PORT or 7777) minus 1"),
    ] = None
    job_secret: Annotated[
        str, _meaning("secret from which the link's key is made; default: the job's name, hosts and hyperparameters")
    ] = ""
    job_secret_file: Annotated[Path | None, _meaning("a file that contains this secret")] = None
    heartbeat_s: Annotated[Seconds, _meaning("interval of the heartbeats on the link")] = 1.0
    heartbeat_timeout_s: Annotated[Seconds, _meaning("silence on the link after which a host counts as vanished")] = 8.0
    finish_timeout_s: Annotated[
        Seconds, _meaning("seconds other hosts may run on after the first succeeds; 0: unlimited")
    ] = 0.0
    rules: Annotated[Path | None, _meaning("a document of log rules, relative to the code folder (docs/rules.md)")] = (
        None
    )
    straggler_factor: Annotated[
        Annotated[float, msgspec.Meta(gt=1)],
        _meaning("a step is slow if it takes this many times the median of the rank's peers (docs/rules.md)"),
    ] = 1.5
    straggler_steps: Annotated[
        Positive, _meaning("slow steps in a row after which a rank is reported as a straggler")
    ] = 20
    stall_s: Annotated[
        Seconds,
        _meaning("seconds without output and CPU use of all ranks of all hosts that count as a hang (try 600); 0: off"),
    ] = 0.0
    stall_action: Annotated[
        Literal["stop", "report"],
        _meaning("on a hang: write the stacks and end the job with 124, or only write the stacks"),
    ] = "stop"
    flight: Annotated[
        Switch,
        _meaning(
            "with TOOLKIT_STALL_S, compare the collectives of all ranks in a hang, as torch's Flight Recorder has them"
        ),
    ] = "on"
    installer: Annotated[
        Literal["auto", "uv", "pip"],
        _meaning(
            "the program that installs requirements.txt (docs/requirements.md); auto: uv where it is on PATH and"
            " installs what pip would, else pip"
        ),
    ] = "auto"
    notify: Annotated[
        str,
        _meaning(
            "address that gets a message at the job's end, at a hang, a restart, and a finding that asks for it: a"
            " webhook, https://..., or one of apprise's (docs/notify.md)"
        ),
    ] = ""
    restarts: Annotated[
        Count, _meaning("how many times all ranks may be started again after a failure (docs/restart.md)")
    ] = 0
    image: Annotated[
        str,
        _meaning(
            "the container image and its digest, for manifest.json (docs/manifest.md): a container does not know it"
        ),
    ] = ""
    source_commit: Annotated[
        str,
        _meaning("the git commit of the source, for manifest.json; default: that of the code folder's repository"),
    ] = ""
    checkpoint_uri: Annotated[
        str,
        _meaning(
            "storage for the checkpoint folder, as s3://BUCKET/KEY: restored before the start, uploaded while the"
            " script runs (docs/storage.md)"
        ),
    ] = ""
    packages_uri: Annotated[
        str,
        _meaning(
            "storage for the packages that requirements.txt installed, as s3://BUCKET/KEY: later starts unpack them"
            " (docs/requirements.md); off: none; default: beside the checkpoints, if TOOLKIT_CHECKPOINT_URI is set"
        ),
    ] = ""
    checkpoint_layout: Annotated[
        Literal["parts", "plain"],
        _meaning(
            "how checkpoints are stored: as parts named by their content, or each file as an ordinary object, for other"
            " tools (docs/storage.md)"
        ),
    ] = "parts"
    storage_timeout_s: Annotated[
        Annotated[float, msgspec.Meta(ge=1, le=3600)],
        _meaning("seconds for which a request to storage is repeated; after it, the transfer has failed"),
    ] = 60.0
    host_addresses: Annotated[
        str, _meaning("addresses of hosts whose names do not resolve: algo-1=127.0.0.1,algo-2=127.0.0.2")
    ] = ""

    platform: Annotated[
        Literal["auto", "sagemaker", "kubernetes", "kubeflow", "slurm", "vertex", "azureml", "plain"],
        _meaning("the platform of the job (docs/orchestrators.md); auto: recognised by its variables and documents"),
    ] = "auto"
    base: Annotated[
        str,
        _meaning(
            "outside SageMaker: the folder in place of /opt/ml; {job} and {host} in it are replaced by their names"
        ),
    ] = ""
    job: Annotated[
        Path | None, _meaning("outside SageMaker: a job file as for `toolkit run`; default: input/config/job.json")
    ] = None
    program: Annotated[
        str,
        _meaning(
            "the script, in the code folder or the current folder; it overrides the job's (docs/orchestrators.md)"
        ),
    ] = ""
    hyperparameters: Annotated[
        str, _meaning("outside SageMaker: a JSON object; each name overrides that of the job file")
    ] = ""
    channels: Annotated[
        str, _meaning("outside SageMaker: NAME=PATH,NAME=PATH; each name overrides that of the job file")
    ] = ""
    distribution: Annotated[str, _meaning("outside SageMaker: pytorchddp, torch_distributed, mpi, ...")] = ""
    hosts: Annotated[
        str, _meaning("outside SageMaker: the job's hosts in rank order, as algo-1,algo-2 or algo-[1-2].digits")
    ] = ""
    host: Annotated[
        str,
        _meaning(
            "outside SageMaker: this host's name in TOOLKIT_HOSTS; default: by the platform's index, or the host name"
        ),
    ] = ""
    stop_within_s: Annotated[
        Seconds | None,
        _meaning(
            "the platform's time from SIGTERM to SIGKILL; default: 120 on SageMaker, 10 in plain docker, 30 elsewhere"
        ),
    ] = None
    kubeflow_progress: Annotated[
        Switch,
        _meaning("on Kubeflow: write progress and metrics to the TrainJob's status (docs/orchestrators/kubeflow.md)"),
    ] = "on"
    termination_log: Annotated[Path, _meaning("on Kubernetes: the file for the termination message, if it exists")] = (
        Path("/dev/termination-log")
    )

    def addresses(self) -> dict[str, str]:
        """Return host_addresses as a dictionary: an IPv4 or IPv6 address, or a name, by host.

        Raises:
            ContractError: a pair lacks its host or address, or the address can be neither an address nor a name.
        """
        pairs = [pair.partition("=") for pair in self.host_addresses.split(",") if pair.strip()]
        found = {host.strip(): address.strip() for host, _, address in pairs}
        if not all(found) or not all(found.values()):
            raise ContractError(
                f"expected HOST=ADDRESS,HOST=ADDRESS,..., found {self.host_addresses!r}",
                where=PREFIX + "HOST_ADDRESSES",
            )
        return {host: _address(host, address) for host, address in found.items()}


def _address(host: str, text: str) -> str:
    """Return the address *text* of *host*; an IPv4 address in IPv6 form ("::ffff:10.0.0.5") is returned as IPv4.

    Raises:
        ContractError: it is neither an address nor a possible name.
    """
    import ipaddress  # 6 ms, which only a job that sets this pays.

    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        if len(text) <= MOST_OF_A_NAME and _NAME.fullmatch(text):
            return text
        raise ContractError(
            "expected an IPv4 or IPv6 address (without brackets, port or mask) or a name for host"
            f" {host}, found {text[:80]!r}",
            where=PREFIX + "HOST_ADDRESSES",
            hint="Write HOST=ADDRESS,HOST=ADDRESS: algo-1=10.0.0.5,algo-2=fd00::6",
        ) from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return text if mapped is None else str(mapped)


def find_address(environ: Mapping[str, str]) -> str:
    """Return TOOLKIT_NOTIFY, which counts also where another setting is wrong."""
    return environ.get(f"{PREFIX}NOTIFY", "")


def read(environ: Mapping[str, str]) -> Settings:
    """Return the settings in *environ*; an empty variable counts as not set.

    Raises:
        ContractError: a value has the wrong type or is outside its range; the message names the variable.
    """
    texts = _texts(environ)
    for field, text in texts.items():
        if not _is_right(field, text):
            raise ContractError(
                f"expected {_expected(field)}, found {text!r}",
                where=PREFIX + field.upper(),
                hint="Correct the variable or unset it.",
            )
    return convert(texts, Settings, "environment", strict=False)


def valid(environ: Mapping[str, str]) -> Settings:
    """Return the settings in *environ*, with defaults for wrong ones: for the report of a wrong setting."""
    right = {field: text for field, text in _texts(environ).items() if _is_right(field, text)}
    return convert(right, Settings, "environment", strict=False)


def _texts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each setting that *environ* sets, by field."""
    names = {field: PREFIX + field.upper() for field in Settings.__struct_fields__}
    texts = {field: environ.get(name, "").strip() for field, name in names.items()}
    return {
        field: text
        for field, text in texts.items()
        if text and not ("://" in text and _is_of_a_service(names[field], environ))
    }


def _is_right(field: str, text: str) -> bool:
    try:
        convert({field: text}, Settings, "environment", strict=False)
    except ContractError:
        return False
    return True


def unknown(environ: Mapping[str, str]) -> str:
    """Return the warning about TOOLKIT_* variables that are no settings, with the nearest names; "" without any."""
    fields = [field.upper() for field in Settings.__struct_fields__]
    known = {PREFIX + name for name in (*fields, *CHILD_VARIABLES)}
    strange = [name for name in sorted(environ) if name.startswith(PREFIX) and name not in known]
    strange = [name for name in strange if not _is_of_a_service(name, environ)]
    if not strange:
        return ""
    hints = [(name, did_you_mean(name.removeprefix(PREFIX), fields)) for name in strange]
    names = ", ".join(f"{name} ({hint.replace('mean ', 'mean ' + PREFIX)})" if hint else name for name, hint in hints)
    return f"ignored, as no settings have these names: {names}. docs/settings.md lists all"


def _is_of_a_service(name: str, environ: Mapping[str, str]) -> bool:
    """True if Kubernetes set *name* for a service whose name begins with "toolkit".

    For a service named toolkit every pod gets TOOLKIT_SERVICE_HOST, TOOLKIT_SERVICE_PORT, TOOLKIT_PORT,
    TOOLKIT_PORT_80_TCP_ADDR, ... (https://kubernetes.io/docs/concepts/containers/container-environment-variables/,
    "match the syntax of Docker links", seen 2026-11).
    """
    ends = (end for end in range(len(PREFIX) - 1, len(name) - 1) if name.startswith(("_SERVICE_", "_PORT"), end))
    return any(f"{name[:end]}_SERVICE_HOST" in environ for end in ends)


def _expected(field: str) -> str:
    parts = list(_parts(get_type_hints(Settings, include_extras=True)[field]))
    words = [repr(part) for part in parts if isinstance(part, str)]
    if words:
        return "one of " + ", ".join(words)
    kind = "a whole number" if int in parts else "seconds" if field.endswith("_s") else "a number"
    limits = next(part for part in parts if isinstance(part, msgspec.Meta) and (part.ge, part.gt) != (None, None))
    if limits.gt is not None:
        return f"{kind} above {limits.gt:,}"
    return f"{kind}, {limits.ge:,} to {limits.le:,}"


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types, words and limits of a type."""
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def table() -> Iterator[tuple[str, str, str, str]]:
    """Yield (variable, values, default, meaning) for each setting, in the order of the class."""
    hints = get_type_hints(Settings, include_extras=True)
    for field in msgspec.structs.fields(Settings):
        meaning = next(meta.description for meta in hints[field.name].__metadata__ if meta.description)
        default = field.default
        default = "" if default is None else f"{default:g}" if isinstance(default, float) else str(default)
        yield PREFIX + field.name.upper(), _values(hints[field.name]), default, meaning


def _values(hint: Any) -> str:
    """Return the values that a type has, for the page: words, or what kind of number or text."""
    parts = list(_parts(hint))
    words = [part for part in parts if isinstance(part, str)]
    if words:
        return ", ".join(f"`{word}`" for word in words)
    return "path" if Path in parts else "number" if int in parts or float in parts else "text"
