"""What the tests of `pretrain` share: runs of a tiny model, each engine's left alone once."""

import json
import shutil

from bigbird_ja import cli
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.storage.ownership import FileVersion, Owned
from testkit.zygote import Ended

STEPS = 30
EVALUATES = ["--mode", "train_and_eval", "--set", "training.eval_every_steps=16"]


def take_programs(finished, model):
    """Begins MODEL_DIR with the programs that another run has compiled."""
    model.mkdir()
    names = [p for p in (finished / "compiled").rglob("*") if p.is_file()]
    made = {str(p.relative_to(finished)): FileVersion.of_file(str(p)) for p in names}
    Owned.create(str(model), "run").note(made)
    shutil.copytree(finished / "compiled", model / "compiled")


class Runs:
    """Starts `pretrain` under an engine.

    `flags` are those of all runs; `finished` is a run that was left alone, with evaluations on the
    way, and `ended` how its process ended.

    Args:
        zygote: forks the processes.
        inputs: a config and a data set.
        once: makes the finished run, for all workers of a test run.
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
        """The command for a new run, with the programs that another one has compiled."""
        model = directory / "model"
        if (self.finished / "compiled").exists():
            take_programs(self.finished, model)
        return [*self.flags, "--model_dir", str(model)]

    def copied(self, directory):
        """The command for a copy of the finished run."""
        model = shutil.copytree(self.finished, directory / "model")
        return [*self.flags, "--model_dir", str(model)]

    def hung(self, *arguments, at):
        """A process that stands still at an instant of its training."""
        running = self.zygote.start(*arguments, hang_at=at)
        running.wait_for(running.hung)
        return running


def resumed_at_last(running, words):
    """How a process that stands still ends, once it has said something and runs again."""
    running.wait_for(running.hung.with_name("err"), words)
    running.hung.unlink()
    return running.wait()


def events(model):
    """The names of a run's events."""
    return [event["event"] for event in run_log.read_events(str(model))]


def refused(flags, capsys, *words, status=2):
    """The command ends with a status and one line that holds `words`."""
    assert cli.run_command_line(flags) == status
    err = capsys.readouterr().err
    error = [line for line in err.splitlines() if line.startswith("bigbird-ja: ")]
    assert len(error) == 1 and "Traceback" not in err
    for word in words:
        assert word in error[0], error[0]
