"""Train some steps with an engine in this process, and compare the results with a reference.

`python -m testkit.engine_runs DEVICES SETTINGS.json` runs every case of a JSON file on DEVICES
virtual CPU devices. It trains with JAX's runtime and with a reference implementation. It prints the
differences of their losses and weights as one line of JSON. DEVICES requires a new process, because
a process can set JAX's number of devices only once.
"""

import dataclasses
import functools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bigbird_ja.settings.values import replace_settings
from testkit import ROOT, command_line, pods, synthetic

TINY = (
    "model.hidden_size=32",
    "model.num_layers=1",
    "model.num_attention_heads=2",
    "model.intermediate_size=48",
    "model.block_size=8",
    "model.num_random_blocks=1",
    "training.global_batch_size=8",
    "training.learning_rate=2e-3",
    "training.warmup_steps=4",
    "training.num_train_steps=20",
    "training.dtype=float32",
    "training.log_every_steps=1",
    "data.shuffle_window=2",
)

Run = tuple[dict[str, Any], list[float]]  # Final state, and loss of each step.


def compare(devices, cases):
    """Train each case with JAX's runtime and with a reference, in a child process.

    Args:
        devices: number of virtual CPU devices.
        cases: dicts with `settings` (added to `TINY`) and `data` (arguments of `synthetic.write`).
            With `then=[2]`, training is restarted in the middle on two devices. With
            `reference="estimator"`, the reference is TPUEstimator, else plain TensorFlow.

    Returns:
        A dict for each case. `losses` and `weights` are the largest relative differences. `first`
        and `last` are the losses of the first and the last step.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(list(cases), file)
        file.flush()
        words = ("testkit.engine_runs", devices, file.name)
        done = command_line.run_module(*words, env=environment(devices), timeout=1200)
    assert done.status == 0, done.stderr[-3000:]
    return list(json.loads(done.stdout.splitlines()[-1]))


def environment(devices):
    """Build the environment of a process with virtual CPU devices and fast compilation."""
    ours = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT)}
    return {**os.environ, **pods.environ(devices), **ours}


def main(devices, path):
    """Run the cases of the JSON file at `path`, and print their results as one line of JSON."""
    with open(path, encoding="utf-8") as file:
        cases = json.load(file)
    with tempfile.TemporaryDirectory() as directory:
        results = [
            _compare(case, Path(directory, str(number)), int(devices))
            for number, case in enumerate(cases)
        ]
    print(json.dumps(results))


def _settings(case):
    """Merge the settings `TINY` with those of a case.

    Leave out the settings of blocks for full attention and ModernBERT, which refuse them.
    """
    own = case.get("settings", [])
    is_full = {"model.attention_type=original_full", "model.architecture=modernbert"} & set(own)
    blocks = ("model.block_size", "model.num_random_blocks") if is_full else ()
    return [*(item for item in TINY if item.partition("=")[0] not in blocks), *own]


def _compare(case, directory, devices):
    from bigbird_ja.data import pipeline
    from bigbird_ja.settings.resolve import fit_to_data
    from bigbird_ja.train.engines.first_state import make_first_state
    from testkit.configs import resolve_config

    manifest = synthetic.write(directory / "data", (40, 40), (4,), **case.get("data", {}))
    config = resolve_config(None, _settings(case))[0]
    config = fit_to_data(config, manifest)

    def batches(host, count, start_step=0):
        part = {"start_step": start_step, "num_hosts": count, "host_index": host}
        return pipeline.read_batches(config, manifest, str(directory / "data"), **part)

    steps = config.training.num_train_steps
    ours = theirs = make_first_state(config, manifest, None, {})
    our_losses = []
    their_losses = []
    if case.get("reference") == "estimator":
        from bigbird_ja.train.engines.estimator import EstimatorEngine

        first = theirs
        engine = EstimatorEngine(
            config, manifest, lambda: first, batches, 1, str(directory), use_tpu=False
        )
        theirs, their_losses = run_engine(engine, steps)
    counts = [devices, *case.get("then", [])]
    for number, count in enumerate(counts):
        begin, end = steps * number // len(counts), steps * (number + 1) // len(counts)
        read = functools.partial(batches, start_step=begin)
        ours, losses = run_engine(_pjrt(config, manifest, ours, read, count), end)
        our_losses += losses
        if "reference" not in case:
            theirs, losses = _replicas(
                config, manifest, theirs, read(0, 1), count, range(begin, end)
            )
            their_losses += losses
    return _difference((ours, our_losses), (theirs, their_losses))


def _difference(ours_and_losses, theirs_and_losses):
    import numpy as np

    (ours, our_losses), (theirs, their_losses) = ours_and_losses, theirs_and_losses
    names = [name for name in theirs if name != "global_step"]
    apart = _apart(ours, theirs, names)
    losses = np.abs(np.subtract(our_losses, their_losses)) / np.abs(their_losses)
    most = {"losses": float(losses.max()), "weights": float(max(apart))}
    worst = names[int(np.argmax(apart))]
    return {**most, "worst": worst, "first": our_losses[0], "last": our_losses[-1]}


def apart(ours, theirs, step):
    """Compare the checkpoints of two runs at a step.

    Returns:
        The largest relative difference of a variable.
    """
    from bigbird_ja.model_dir.variables import read_variables

    left, right = (read_variables(str(path / f"model.ckpt-{step}")) for path in (ours, theirs))
    return max(_apart(left, right, [name for name in left if name != "global_step"]))


def _apart(ours, theirs, names):
    """Measure the difference of each variable, relative to the variable's root mean square.

    A bias of attention keys adds the same number to all scores of a query. This does not change
    the softmax, so that the gradient of the bias consists of rounding errors. The difference of
    such a bias is therefore measured relative to the root mean square of a typical variable.
    """
    import numpy as np

    def size(value):
        return float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))

    kinds = {name: name.rpartition("/")[2] if "/adam_" in name else "" for name in names}
    usual = {
        kind: float(np.median([size(theirs[n]) for n in names if kinds[n] == kind]))
        for kind in set(kinds.values())
    }
    return [
        size(np.subtract(ours[name], theirs[name]))
        / (usual[kinds[name]] if "/key/bias" in name else size(theirs[name]))
        for name in names
    ]


def _pjrt(config, data, state, batches, count):
    from bigbird_ja.train.engines import devices as devices_lib
    from bigbird_ja.train.engines.pjrt import PjrtEngine

    available = devices_lib.find(use_tpu=False)
    used = dataclasses.replace(available, devices=available.devices[:count])
    assert len(used.devices) == count, available
    return PjrtEngine(config, data, lambda: state, batches, used)


def run_engine(engine, steps):
    """Train until step `steps`, and return the final state and the loss of each step."""
    engine.begin()
    try:
        metrics = {}
        step = 0
        while step < steps:
            done = engine.advance(steps)
            assert done.first_nonfinite_step is None
            metrics.update(done.metrics)
            step = done.step
        metrics.update(engine.settle().metrics)
        state = engine.snapshot()()
    finally:
        engine.close()
    return state, [metrics[number]["loss"] for number in sorted(metrics)]


def _replicas(config, data, state, batches, replicas, steps):
    """Run the steps in plain TensorFlow, and return the final state and the loss of each step.

    Compute the gradients of the replicas one after the other, and sum them.
    """
    import tensorflow as tf

    from bigbird_ja.model.params import make_parameter_specs
    from bigbird_ja.model_dir.variables import name_slot
    from bigbird_ja.train import step as step_lib
    from bigbird_ja.train.optimizer import list_slot_parameters

    config = replace_settings(config, {"model.attention_implementation": "xla"})
    names = list(make_parameter_specs(config, data))
    params = {name: tf.constant(state[name]) for name in names}
    slots = {
        slot: {n: tf.constant(state[name_slot(n, slot)]) for n in having}
        for slot, having in list_slot_parameters(config, data).items()
    }

    @tf.function(autograph=False)
    def part(params, batch, step, replica, weight):
        return step_lib.compute_replica_gradients(
            config,
            data,
            params,
            batch,
            step,
            replica_id=replica,
            num_replicas=replicas,
            weight=weight,
        )

    @tf.function(autograph=False)
    def apply(params, slots, gradients, sums, step):
        return step_lib.apply_gradients(config, data, params, slots, gradients, sums, step)

    losses = []
    for step, batch in zip(steps, batches, strict=False):
        weight = step_lib.sum_prediction_weights(batch)
        parts = []
        for replica in range(replicas):
            own = {n: tf.split(value, replicas)[replica] for n, value in batch.items()}
            parts.append(
                part(params, own, tf.constant(step, tf.int64), tf.constant(replica), weight)
            )
        gradients = {n: tf.add_n([gradient[n] for gradient, _ in parts]) for n in names}
        sums = tf.add_n([sums for _, sums in parts])
        params, slots, metrics = apply(params, slots, gradients, sums, tf.constant(step, tf.int64))
        losses.append(float(metrics["loss"]))
    result = {name: value.numpy() for name, value in params.items()}
    for slot, values in slots.items():
        result |= {name_slot(n, slot): value.numpy() for n, value in values.items()}
    return result, losses


if __name__ == "__main__":
    main(*sys.argv[1:])
