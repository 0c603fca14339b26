"""The estimate of a step's memory on a CPU is near the compiler's figure."""

import pytest

from bigbird_ja.errors import OutOfMemory
from bigbird_ja.train.engines import devices, host_memory, pjrt
from testkit.configs import fitted, with_data

pytest.importorskip("jax")
SMALL = """
    model.hidden_size=64 model.num_attention_heads=4 model.intermediate_size=256
    model.attention_type=original_full model.vocab_size=512 make_data.seq_length=256
    training.dtype=float32
""".split()


def make_engine(*settings, name=None):
    run = with_data(fitted(name, settings))
    return pjrt.PjrtEngine(*run, dict, lambda *_: None, devices.find(False)), run  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("layers", "sequences", "length"),
    [(1, 32, 256), (4, 8, 256), (4, 4, 1024)],  # The last case processes groups of heads.
)
def test_estimate_is_near_the_compilers_figure(layers, sequences, length, monkeypatch):
    figures: list[int] = []
    monkeypatch.setattr(host_memory, "refuse_if_too_large", figures.append)
    size = [f"model.num_layers={layers}", f"training.global_batch_size={sequences}"]
    size += [f"make_data.seq_length={length}"]
    engine, run = make_engine(*SMALL, *size)
    engine._compile()
    (compiled,) = figures
    estimate = host_memory.estimate_step(*run, sequences)
    assert 0.6 < estimate / (compiled / host_memory.OVERHEAD) < 1.1


def test_step_that_cannot_fit_is_refused_before_it_is_compiled(monkeypatch):
    """Refuse the step at 4,096 and at 512 tokens, with 20 GB of free memory.

    Without this refusal, the operating system killed the compiler at 512 tokens.
    """
    monkeypatch.setattr(host_memory, "find_available_bytes", lambda: 20 * 10**9)
    monkeypatch.setattr(pjrt.PjrtEngine, "_compile", lambda engine: pytest.fail("compiled"))
    for length, needed in ((4096, 207), (512, 24)):
        engine, _ = make_engine(f"make_data.seq_length={length}", name="base-4096")
        with pytest.raises(OutOfMemory, match=rf"needs about {needed}\.\d+ GB of memory, but this"):
            engine.begin()
