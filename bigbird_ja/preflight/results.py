"""Results of `preflight`: returned by its function, printed by `--json`, and read by `plan`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from bigbird_ja.accelerators.chips import Accelerator, parse_topology
from bigbird_ja.errors import BadInput
from bigbird_ja.storage import decode

Rate = Annotated[float, Meta(gt=0, le=1e15)]
Milliseconds = Annotated[float, Meta(gt=0, le=1e12)]
Topology = Annotated[str, Meta(pattern=r"^[a-z0-9]+:\d{1,4}(x\d{1,4}){1,2}\Z")]


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """Figures of a step that was compiled for one device or for a slice.

    A figure is None if the step does not fit, or if the figure cannot be counted.

    Attributes:
        chip: Name of the chip.
        topology: Name of the slice; None for one device.
        devices: Number of devices.
        fits: Whether the step fits in HBM.
        seq_length: Tokens per sequence.
        batch_per_core: Sequences per device and micro-batch.
        gradient_accumulation_steps: Micro-batches per step.
        predictions_per_seq: Masked tokens per sequence.
        attention_implementation: "xla" or "kernel".
        key_tiles_share: Fraction of key tiles that the attention kernels compute. A kernel skips a
            key tile that contains no document of the query tile. None if no kernel skips tiles.
        document_lengths: Source of the document lengths for `key_tiles_share`.
        step_ms: Time of a step in milliseconds, as `measured.predict_step_seconds` predicts it.
        step_ms_range: Interval that probably contains the time of a step.
        basis: Basis of the predicted time: "machine code" or "the compiler's estimate".
        tokens_per_second_per_core: Tokens per second on one device.
        tokens_per_second: Tokens per second on the slice; None for one device.
        mfu: Model FLOPs utilization.
        model_flops: FLOPs of the model per step and device.
        flops: FLOPs of the compiled program, per step and device.
        hbm_limit_bytes: HBM of one device.
        hbm_peak_bytes: Peak memory on one device.
        temp_bytes: Bytes of temporaries.
        argument_bytes: Bytes of arguments.
        output_bytes: Bytes of outputs.
        alias_bytes: Bytes of outputs that reuse an argument's buffer.
        largest_buffers: Largest allocations of a step that does not fit.
        largest_batch_per_core: Largest `batch_per_core` that fits; None without a search.
        hbm_traffic_bytes: Bytes that a step reads and writes.
        estimated_cycles: Cycles by the compiler's estimate.
        priced_cycles: `estimated_cycles`, plus prices of ops without an estimate.
        unestimated_ops: Number of ops without an estimate.
        by_kind: Priced cycles by kind of op.
        code_cycles: Cycles by machine code.
        code_coverage: Fraction of `code_cycles` that is counted; the rest is priced.
        code_waiting_cycles: Part of `code_cycles` in which the core waits for copies.
        code_roofline_cycles: Cycles if each op ran at the limit of HBM or of the matrix units.
        code_by_kind: Cycles by machine code, by kind of op.
        code_bound_by: Cycles by machine code, by the resource that bounds them.
        code_not_counted: Reason why cycles are unknown.
        collectives: Number of collectives in a step.
        collective_bytes: Bytes that the collectives move.
        collective_cycles: Part of `priced_cycles` for collectives.
        collective_link_ms: Time of the collectives' traffic on the links between chips.
        top_ops: Costliest ops (see `figures.list_top_ops`).
        trace_seconds: Wall-clock time of tracing on this machine.
        lowering_seconds: Wall-clock time of lowering on this machine.
        compile_seconds: Wall-clock time of compilation on this machine.
        compiler: Version of the compiler.
    """

    chip: str
    topology: Topology | None = None
    devices: int = 1
    fits: bool
    seq_length: Annotated[int, Meta(ge=1, le=1 << 30)]
    batch_per_core: int
    gradient_accumulation_steps: int = 1
    predictions_per_seq: int = 0
    attention_implementation: str = "xla"
    key_tiles_share: float | None = None
    document_lengths: str | None = None
    step_ms: Milliseconds | None = None
    step_ms_range: tuple[Milliseconds, Milliseconds] | None = None
    basis: str | None = None
    tokens_per_second_per_core: Rate | None = None
    tokens_per_second: Rate | None = None
    mfu: float | None = None
    model_flops: float = 0.0
    flops: float | None = None
    hbm_limit_bytes: int = 0
    hbm_peak_bytes: int | None = None
    temp_bytes: int | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    largest_buffers: list[dict[str, Any]] = field(default_factory=list)
    largest_batch_per_core: int | None = None
    hbm_traffic_bytes: float | None = None
    estimated_cycles: int | None = None
    priced_cycles: int | None = None
    unestimated_ops: int | None = None
    by_kind: dict[str, int] = field(default_factory=dict)
    code_cycles: int | None = None
    code_coverage: Annotated[float, Meta(ge=0, le=1)] | None = None
    code_waiting_cycles: int | None = None
    code_roofline_cycles: int | None = None
    code_by_kind: dict[str, int] | None = None
    code_bound_by: dict[str, int] | None = None
    code_not_counted: str | None = None
    collectives: int | None = None
    collective_bytes: int | None = None
    collective_cycles: int | None = None
    collective_link_ms: float | None = None
    top_ops: list[dict[str, Any]] = field(default_factory=list)
    trace_seconds: float = 0.0
    lowering_seconds: float | None = None
    compile_seconds: float | None = None
    compiler: str | None = None


@dataclass(frozen=True, kw_only=True)
class PreflightResult:
    """Results of `preflight` for all requested chips and slices.

    Attributes:
        chips: Results for single devices.
        topologies: Results for slices.
        config_fingerprint: Fingerprint of the config and its data.
        config: Settings by key.
        versions: Versions of the compiler's packages.
    """

    chips: list[StepResult] = field(default_factory=list)
    topologies: list[StepResult] = field(default_factory=list)
    config_fingerprint: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def find(self, machine: Accelerator) -> StepResult | None:
        """Return the result for a machine's slice, else for its chip, else None."""
        slices = (one for one in self.topologies if parse_topology(str(one.topology)) == machine)
        return next(slices, None) or next((c for c in self.chips if c.chip == machine.chip), None)


def load_results(path: str) -> PreflightResult:
    """Read a result file of `preflight`.

    Raises:
        BadInput: The file is missing, or is not a result of `preflight`.
    """
    try:
        return decode.read_json(path, PreflightResult, "not a result of `bigbird-ja preflight`")
    except FileNotFoundError as error:
        raise BadInput(f"{path}: no such file. Create it with `bigbird-ja preflight`") from error
