"""`doctor` lists the devices and packages of a machine, and reports whether it can train."""

import importlib.util

from bigbird_ja.doctor.doctor import Check, describe
from bigbird_ja.train.engines import choose


def named(ended):
    return {check["name"]: check for check in ended.json["checks"]}


def test_a_machine_that_can_train(run):
    ended = run("doctor", "--json")
    checks = named(ended)
    assert ended.status == 0 and ended.json["can_train"]
    assert "cpu" in checks["engine pjrt"]["observed"].lower() and checks["tensorflow"]["is_well"]
    assert {"credentials", "memory", "disk"} <= checks.keys()


def test_lines_are_as_narrow_as_the_terminal():
    check = Check("engine pjrt", False, "cannot be used", "install " + "package " * 30)
    for width in (40, 60):
        assert all(len(line) <= width for line in describe(check, width).splitlines())


def test_a_machine_without_an_engine_is_refused_with_the_packages_to_install(
    monkeypatch, tmp_path, run
):
    find = importlib.util.find_spec
    missing = {"jax": None}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: missing.get(name, find(name, *more))
    )
    monkeypatch.setattr(choose, "has_estimator", lambda: False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", f"{tmp_path}/none.json")
    ended = run("doctor", "--json")
    assert ended.status == 2 and not ended.json["can_train"]
    checks = named(ended)
    assert "pip install 'bigbird-ja[cpu]'" in checks["engine pjrt"]["advice"]
    assert "no Google credentials" in checks["credentials"]["observed"]
