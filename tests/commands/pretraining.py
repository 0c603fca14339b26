"""Runs of a tiny model for the tests of `pretrain`. For each engine, one of them is finished."""

import json
import shutil

from bigbird_ja import cli
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.storage.ownership import FileVersion, Owned
from testkit.zygote import Ended

STEPS = 30
EVALUATES = ["--mode", "train_and_eval", "--set", "training.eval_every_steps=16"]


def take_programs(finished, model):
    """Copy the compiled programs of a finished run to a new MODEL_DIR."""
    model.mkdir()
    names = [p for p in (finished / "compiled").rglob("*") if p.is_file()]
    made = {str(p.relative_to(finished)): FileVersion.from_file(str(p)) for p in names}
    Owned.create(str(model), "run").note(made)
    shutil.copytree(finished / "compiled", model / "compiled")


class Runs:
    """Starter of `pretrain` processes with one engine.

    Attributes:
        flags: flags of all runs.
        finished: MODEL_DIR of a finished, uninterrupted run with evaluations.
        ended: outcome of the process that trained the finished run.

    Args:
        zygote: process that forks the trainers.
        inputs: paths of a config and a data set.
        engine: name of the engine.
        once: fixture that trains the finished run only once for all workers of pytest.
    """

    def __init__(self, zygote, inputs, engine, once):
        self.zygote, self.engine = zygote, engine
        self.flags = ["pretrain", "--json", "--engine", engine, "--config", inputs[0]]
        self.flags += ["--data_dir", inputs[1], "--num_train_steps", str(STEPS)]

        def finish(folder):
            ended = zygote.run(*self.flags, "--model_dir", str(folder / "model"), *EVALUATES)
            assert ended.status == 0, ended.err
            (folder / "ended.json").write_text(json.dumps(vars(ended)))

        folder = once(f"finished-{engine}", finish)
        self.finished = folder / "model"
        self.ended = Ended(**json.loads((folder / "ended.json").read_text()))

    def new(self, directory):
        """Return the command for a new run, which reuses the finished run's compiled programs."""
        model = directory / "model"
        if (self.finished / "compiled").exists():
            take_programs(self.finished, model)
        return [*self.flags, "--model_dir", str(model)]

    def copied(self, directory):
        """Return the command for a copy of the finished run."""
        model = shutil.copytree(self.finished, directory / "model")
        return [*self.flags, "--model_dir", str(model)]

    def hung(self, *arguments, at):
        """Start a process, and wait until it pauses at an instant (see `testkit.instants`)."""
        running = self.zygote.start(*arguments, hang_at=at)
        running.wait_for(running.hung)
        return running


def resumed_at_last(running, words):
    """Wait until a paused process prints `words`, resume it, and return its outcome."""
    running.wait_for(running.hung.with_name("err"), words)
    running.hung.unlink()
    return running.wait()


def events(model):
    """Return the names of a run's events."""
    return [event["event"] for event in run_log.read_events(str(model))]


def refused(flags, capsys, *words, status=2):
    """Check that a command exits with `status`, and prints one error line that contains `words`."""
    assert cli.run_command_line(flags) == status
    err = capsys.readouterr().err
    error = [line for line in err.splitlines() if line.startswith("bigbird-ja: ")]
    assert len(error) == 1 and "Traceback" not in err
    for word in words:
        assert word in error[0], error[0]
