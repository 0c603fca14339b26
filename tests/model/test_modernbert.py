"""ModernBERT's encoder and head compute the same values as transformers with the same weights."""

import numpy as np
import pytest
import tensorflow as tf

from bigbird_ja.huggingface.state_dict import is_transposed, to_hugging_face, to_hugging_face_name
from bigbird_ja.model.forward import encode, masked_lm_logits
from bigbird_ja.model.initialization import draw_parameters
from bigbird_ja.model.params import make_parameter_specs
from testkit.configs import with_data
from tests.model.tiny import tiny_batch, tiny_config

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs PyTorch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")
pytestmark = pytest.mark.both


def modernbert(seq_length, **sets):
    """Return a config of four layers, of which the second and the third are local."""
    shape = {"model.architecture": "modernbert", "model.num_layers": 4}
    return tiny_config(seq_length, **(shape | sets))


def weights_of(config):
    """Return random weights. No weight keeps its initial value 0 or 1."""
    random = np.random.default_rng(5)
    return {
        name: value + random.normal(0, 0.1, value.shape).astype(np.float32)
        for name, value in draw_parameters(*with_data(config), seed=1).items()
    }


def reference(config, params=None):
    """Return transformers' model with the weights `params`, and check that it accepts them all."""
    model = config.model
    same = (
        "vocab_size hidden_size num_attention_heads intermediate_size max_position_embeddings"
        " local_attention global_attn_every_n_layers global_rope_theta local_rope_theta"
    )
    settings = {name: getattr(model, name) for name in same.split()}
    settings |= {"num_hidden_layers": model.num_layers, "attn_implementation": "sdpa"}
    settings |= {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1}
    settings |= {"eos_token_id": 2, "sep_token_id": 2}
    config = transformers.ModernBertConfig(**settings)
    theirs = transformers.ModernBertForMaskedLM(config).eval()
    if params is None:
        return theirs
    state = {k: torch.from_numpy(v) for k, v in to_hugging_face(model, params).items()}
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    assert set(missing) <= {"decoder.weight"} and not unexpected
    return theirs


def their_logits(theirs, ids):
    given = torch.from_numpy(ids.astype(np.int64))
    return theirs(input_ids=given, attention_mask=(given != 0).long()).logits


@pytest.mark.parametrize(
    "length, sets",
    [
        (100, {}),  # The length is not a multiple of the window.
        (512, {"model.local_attention": 32}),
        (96, {"model.local_attention": 16, "model.global_attn_every_n_layers": 2}),
        (256, {"model.global_rope_theta": 10_000, "model.local_rope_theta": 160_000}),
        (2048, {"model.num_layers": 2}),
        pytest.param(8192, {"model.num_layers": 2}, marks=pytest.mark.slow),
    ],
)
def test_logits_are_those_of_transformers(length, sets):
    config = modernbert(length, **sets)
    params = weights_of(config)
    ids = tiny_batch(config, batch_size=2)["input_ids"].numpy()  # The first row ends in padding.
    with torch.no_grad():
        expected = their_logits(reference(config, params), ids).numpy()
    hidden = encode(params, *with_data(config), tf.constant(ids))
    logits = masked_lm_logits(params, config, hidden).numpy()
    np.testing.assert_allclose(logits[ids != 0], expected[ids != 0], atol=1e-4, rtol=1e-4)
    assert np.abs(expected).max() > 1  # The logits are far from zero.


def test_gradients_are_those_of_transformers():
    sets = {"model.local_attention": 16, "training.gradient_checkpointing": True}
    config = modernbert(128, **sets, **{"model.num_layers": 2})
    params = weights_of(config)
    batch = tiny_batch(config, batch_size=2)
    ids, chosen = batch["input_ids"].numpy(), batch["masked_lm_positions"].numpy()
    upstream = np.random.default_rng(1).normal(size=(*chosen.shape, 60)).astype(np.float32)

    theirs = reference(config, params)
    logits = their_logits(theirs, ids)
    rows = torch.arange(len(ids))[:, None]
    wanted = logits[rows, torch.from_numpy(chosen.astype(np.int64))]
    (wanted * torch.from_numpy(upstream)).sum().backward()
    expected = {name: value.grad.numpy() for name, value in theirs.named_parameters()}

    @tf.function(autograph=False)
    def gradients(params):
        with tf.GradientTape() as tape:
            tape.watch(params)
            key = tf.constant([1, 2], tf.uint32)
            places = {"positions": batch["masked_lm_positions"], "dropout_key": key}
            inputs = (batch["input_ids"], batch["segment_ids"])
            hidden = encode(params, *with_data(config), *inputs, **places)
            total = tf.reduce_sum(masked_lm_logits(params, config, hidden) * upstream)
        return tape.gradient(total, params)

    given = {name: tf.constant(value) for name, value in params.items()}
    for name, value in gradients(given).items():
        ours = tf.convert_to_tensor(value).numpy()
        gradient = expected[to_hugging_face_name(config.model, name)]
        gradient = gradient.T if is_transposed(name) else gradient
        np.testing.assert_allclose(ours, gradient, atol=1e-4, rtol=1e-3, err_msg=name)


@pytest.mark.parametrize("length", [96, 256])
def test_separate_documents_give_the_outputs_of_single_documents(length):
    sets = {"model.local_attention": 32, "model.attend_across_documents": False}
    config = modernbert(length, **sets)
    params = weights_of(config)
    ids = tiny_batch(config, batch_size=1)["input_ids"].numpy()
    ids[ids == 0] = 9
    cut = length // 3
    documents = np.where(np.arange(length) < cut, 1, 2)[None].astype(np.int32)
    zeros = tf.zeros_like(tf.constant(ids))
    together = encode(
        params, *with_data(config), tf.constant(ids), zeros, tf.constant(documents)
    ).numpy()
    for part in (slice(0, cut), slice(cut, length)):
        alone = encode(
            params, *with_data(config), tf.constant(ids[:, part]), zeros[:, part]
        ).numpy()
        np.testing.assert_allclose(together[:, part], alone, atol=1e-5)


def test_initial_weights_have_the_deviations_of_transformers():
    config = modernbert(64, **{"model.hidden_size": 64, "model.intermediate_size": 128})
    theirs = {k: v.detach().numpy() for k, v in reference(config).named_parameters()}
    for name, value in draw_parameters(*with_data(config), seed=1).items():
        there = theirs[to_hugging_face_name(config.model, name)]
        assert value.std() == pytest.approx(there.std(), rel=0.1, abs=1e-6), name
        assert make_parameter_specs(*with_data(config))[name].decay == (value.ndim > 1)
