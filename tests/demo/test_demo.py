"""Parts of the demo. The test of the whole demo, which kills a training process, is `slow`."""

import json
import sys

import pytest

from bigbird_ja import errors
from bigbird_ja.demo import demo, run_command
from testkit.command_line import run_cli


def _log(model_dir, losses, *events):
    model_dir.mkdir()
    lines = [json.dumps({"step": i, "loss": x, "time": i}) for i, x in enumerate(losses, start=1)]
    # A killed process leaves an incomplete line.
    (model_dir / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 9, "lo']))
    (model_dir / "events.jsonl").write_text("".join(f"{line}\n" for line in events))
    return str(model_dir)


@pytest.mark.parametrize(
    ("losses", "before", "error"),
    [
        ([3.0, 2.0, 1.0], {1: 3.0, 2: 2.0}, None),
        ([3.0, 2.0, 1.0], {1: 3.0, 2: 2.0000000000000004}, "losses differ"),
        ([3.0, 2.0], {1: 3.0}, "losses differ"),  # The second session repeated no step.
        ([3.0, 4.0, 5.0], {1: 3.0, 2: 4.0}, "did not fall"),
    ],
    ids=["same", "differs", "nothing to compare", "rises"],
)
def test_repeated_losses_must_be_equal_and_fall(losses, before, error, tmp_path):
    resumed = '{"event": "resumed", "time": 1, "global_step": 1}'
    model = _log(tmp_path / "run", losses, resumed)
    if error:
        with pytest.raises(RuntimeError, match=error):
            demo.compare_losses(model, before)
        return
    results = demo.compare_losses(model, before)
    assert results["killed_at_step"] == 2 and results["resumed_from_step"] == 1


def test_demo_ends_with_the_status_of_the_failed_command(monkeypatch, tmp_path):
    program = tmp_path / "step"
    line = json.dumps({"reason": "out_of_memory", "error": "what and where"})
    program.write_text(f"#!{sys.executable}\nimport sys\nprint({line!r})\nsys.exit(71)\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(errors.CommandError, match="what and where") as caught:
        run_command.run_command(["tokenize"])
    assert (caught.value.status, caught.value.reason) == (71, "out_of_memory")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_runs_every_command_and_reruns(tmp_path):
    for _ in range(2):
        result = run_cli("demo", f"--work_dir={tmp_path}/demo", "--json", timeout=850)
        assert result.status == 0, result.stderr
        shown = result.json
        assert shown["resumed_from_step"] < shown["killed_at_step"] < 360
        assert shown["last_loss"] < shown["first_loss"] and shown["eval_loss"] < 3.0
        assert [mask[0]["token"] for mask in shown["masks"]] == ["である", "を", "った"]
        assert (tmp_path / "demo/report.html").is_file()
