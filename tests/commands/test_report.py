"""`report` writes one HTML page."""

from tests.report import fake_run


def test_one_page_for_two_runs(tmp_path, run):
    first = fake_run.write(tmp_path / "a", steps=400)
    second = fake_run.write(tmp_path / "b", steps=400, seed=1)
    output = tmp_path / "new/folder/r.html"
    folders = (f"--model_dir={first}", f"--model_dir={second}")
    ended = run("report", *folders, f"--output={output}", "--json")
    assert ended.status == 0 and [one["step"] for one in ended.json["runs"]] == [400, 400]
    assert "a, b" in output.read_text(encoding="utf-8")
