"""The choice between XLA's attention and the kernels, and the reason against the kernels."""

import pytest

from bigbird_ja.errors import BadInput
from bigbird_ja.model.kernels import choose as kernels
from bigbird_ja.settings.values import compute_config_fingerprint, list_changes
from testkit.configs import fitted, with_data

KEY = "model.attention_implementation"
MODERNBERT = "model.architecture=modernbert"


def _config(*settings):
    return fitted("base-4096", list(settings))


@pytest.fixture(autouse=True)
def jax_0_7(monkeypatch):
    monkeypatch.setattr(kernels, "_get_jax_version", lambda: (0, 7))


def _resolved(config, platform, chip):
    return kernels.resolve_attention(
        *with_data(config), platform, chip
    ).model.attention_implementation


@pytest.mark.parametrize(
    # `auto` and `named` are the implementations that the settings "auto" and "kernel" result in.
    # None means that the setting "kernel" is refused.
    ("platform", "chip", "auto", "named"),
    [
        ("tpu", "v5e", "kernel", "kernel"),
        ("tpu", "v6e", "kernel", "kernel"),
        ("tpu", "v5p", "xla", "kernel"),
        ("tpu", "v3", "xla", None),
        ("tpu", None, "xla", None),
        ("cpu", None, "xla", "kernel"),  # A CPU interprets the kernels.
    ],
)
def test_auto_takes_kernels_on_chips_where_they_are_cheaper(platform, chip, auto, named):
    config = _config()
    assert _resolved(config, platform, chip) == auto
    assert config.model.attention_implementation == "auto"  # The given config does not change.
    assert _resolved(_config(f"{KEY}=xla"), platform, chip) == "xla"
    if named:
        assert _resolved(_config(f"{KEY}=kernel"), platform, chip) == named


@pytest.mark.parametrize(
    "settings",
    [
        ["make_data.seq_length=512"],  # Short sequences get full attention.
        ["model.attention_type=original_full"],
        [MODERNBERT],
        [MODERNBERT, "make_data.seq_length=640", "model.local_attention=64"],
    ],
)
def test_full_and_local_attention_have_kernels_too(settings):
    assert _resolved(_config(*settings), "tpu", "v5e") == "kernel"


MOSAIC = "INTERNAL: Failed to deserialize the Mosaic module: Unsupported version: expected <= 4"
VMEM = "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space vmem"
HBM = "Ran out of memory in memory space hbm. ... XLA label: custom-call tpu_custom_call"


@pytest.mark.parametrize(
    ("settings", "message", "continues"),
    [
        ([], MOSAIC, True),
        ([], VMEM, True),
        ([], HBM, False),
        ([f"{KEY}=kernel"], MOSAIC, False),  # The user requested the kernels.
        ([f"{KEY}=xla"], MOSAIC, False),
    ],
)
def test_xla_replaces_kernels_that_the_compiler_refuses(settings, message, continues, caplog):
    asked = _config(*settings)
    taken = kernels.resolve_attention(*with_data(asked), "tpu", "v5e")
    if continues:
        result = kernels.fall_back_to_xla(asked, taken, ValueError(message))
        assert result.model.attention_implementation == "xla"
        assert len(caplog.messages) == 1
    else:
        with pytest.raises(ValueError, match=message[:20]):
            kernels.fall_back_to_xla(asked, taken, ValueError(message))


@pytest.mark.parametrize(
    ("settings", "platform", "chip", "jax", "why"),
    [
        (["model.random_pattern=independent"], "tpu", "v5e", (0, 7), "with independent blocks"),
        (["model.attention_type=simulated_sparse"], "tpu", "v5e", (0, 7), "simulated_sparse"),
        (["make_data.seq_length=600"], "tpu", "v5e", (0, 7), "600 tokens are not a multiple"),
        ([MODERNBERT, "model.local_attention=258"], "tpu", "v5e", (0, 7), "258 is more than 256"),
        (["model.block_size=32"], "tpu", "v5e", (0, 7), "two blocks of a multiple of 128"),
        (["make_data.seq_length=65536"], "tpu", "v5e", (0, 7), "the vector memory of a TPU v5e"),
        ([], "tpu", "v3", (0, 7), "it is for TPUs v4, v5e"),
        ([], "cuda", None, (0, 7), "it is for TPUs"),
        ([], "tpu", "v5e", None, "needs jax, which is not installed"),
        ([], "cpu", None, (0, 4), "needs jax 0.7 or later"),
    ],
)
def test_impossible_kernels_are_refused_and_auto_takes_xla(
    settings, platform, chip, jax, why, monkeypatch
):
    monkeypatch.setattr(kernels, "_get_jax_version", lambda: jax)
    assert _resolved(_config(*settings), platform, chip) == "xla"
    with pytest.raises(
        BadInput, match=f"^{KEY}=kernel is not possible, as .*{why}.*: leave it at auto$"
    ):
        _resolved(_config(*settings, f"{KEY}=kernel"), platform, chip)


def test_fingerprint_does_not_depend_on_the_implementation():
    ours, theirs = _config(), _config(f"{KEY}=xla")
    assert compute_config_fingerprint(*with_data(ours)) == compute_config_fingerprint(
        *with_data(theirs)
    )
    assert not list_changes(with_data(ours), with_data(theirs))
