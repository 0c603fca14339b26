"""Results of `preflight`, as its function, `--json`, `--output` and `plan` have them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from bigbird_ja.accelerators.chips import Accelerator, of_topology
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode

Rate = Annotated[float, Meta(gt=0, le=1e15)]  # tokens per second
Milliseconds = Annotated[float, Meta(gt=0, le=1e12)]
Topology = Annotated[str, Meta(pattern=r"^[a-z0-9]+:\d{1,4}(x\d{1,4}){1,2}\Z")]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Figures of a step, compiled for one device or a slice.

    None: the step does not fit, or the figure cannot be counted. Times and rates are those of
    `measured.step_seconds`.
    """

    chip: str
    topology: Topology | None = None  # of a slice
    devices: int = 1
    fits: bool
    # Shapes and kernels of the step.
    seq_length: Annotated[int, Meta(ge=1, le=1 << 30)]
    batch_per_core: int  # sequences of a device and micro-batch
    gradient_accumulation_steps: int = 1
    predictions_per_seq: int = 0
    attention_implementation: str = "xla"
    key_tiles_share: float | None = None  # of full attention's key tiles, used
    document_lengths: str | None = None  # source of the lengths by which they are used
    # The time.
    step_ms: Milliseconds | None = None
    step_ms_range: tuple[Milliseconds, Milliseconds] | None = None
    basis: str | None = None
    tokens_per_second_per_core: Rate | None = None
    tokens_per_second: Rate | None = None  # of a slice
    mfu: float | None = None
    model_flops: float = 0.0  # of the model, in a step of one device
    flops: float | None = None  # of the program
    # Memory of one device.
    hbm_limit_bytes: int = 0
    hbm_peak_bytes: int | None = None
    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    largest_buffers: list[dict[str, Any]] = field(default_factory=list)  # if it does not fit
    largest_batch_per_core: int | None = None  # if requested
    hbm_traffic_bytes: float | None = None
    # Cycles by the compiler's estimate.
    estimated_cycles: int | None = None
    priced_cycles: int | None = None  # with those of ops without an estimate
    unestimated_ops: int | None = None
    by_kind: dict[str, int] = field(default_factory=dict)
    # Cycles by machine code.
    code_cycles: int | None = None
    code_coverage: Annotated[float, Meta(ge=0, le=1)] | None = None  # counted share
    code_waiting_cycles: int | None = None
    code_roofline_cycles: int | None = None
    code_by_kind: dict[str, int] | None = None
    code_bound_by: dict[str, int] | None = None
    code_not_counted: str | None = None  # reason
    # Traffic between the devices of a slice.
    collectives: int | None = None
    collective_bytes: int | None = None
    collective_cycles: int | None = None
    collective_link_ms: float | None = None
    top_ops: list[dict[str, Any]] = field(default_factory=list)
    # Seconds on this machine.
    trace_seconds: float = 0.0
    lowering_seconds: float | None = None
    compile_seconds: float | None = None
    compiler: str | None = None


@dataclass(frozen=True, kw_only=True)
class PreflightResult:
    """Results for each chip and slice, with the config and the compiler's versions."""

    chips: list[StepResult] = field(default_factory=list)
    topologies: list[StepResult] = field(default_factory=list)
    config_fingerprint: str = ""
    config: dict[str, Any] = field(default_factory=dict)  # by setting
    versions: Mapping[str, str] = field(default_factory=dict)  # compiler packages

    def find(self, machine: Accelerator) -> StepResult | None:
        """Return the result for a machine: for its slice if there is one, else for its chip."""
        slices = (one for one in self.topologies if of_topology(str(one.topology)) == machine)
        return next(slices, None) or next((c for c in self.chips if c.chip == machine.chip), None)


def load_results(path: str) -> PreflightResult:
    """Read a file of `preflight`.

    Raises:
        BadInput: No such file, or a file of another kind.
    """
    try:
        return decode.read_json(path, PreflightResult, "not a result of `bigbird-ja preflight`")
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file. Make it with `bigbird-ja preflight`") from error
