"""The same weights in Hugging Face's BigBird give the same predictions."""

from __future__ import annotations

import numpy as np
import pytest

from bigbird_ja.model.bigbird import encode
from bigbird_ja.model.heads import masked_lm_logits, next_sentence_logits
from bigbird_ja.model.hf_names import hugging_face_name, to_hugging_face
from bigbird_ja.model.params import SEGMENTS, initial_parameters
from tests.model.tiny import tiny_batch, tiny_config

torch = pytest.importorskip("torch", reason="parity with Hugging Face needs PyTorch")
transformers = pytest.importorskip("transformers", reason="parity needs transformers")


def _trained_like(config):
    """Weights of which none is at its trivial first value."""
    random = np.random.default_rng(5)
    return {
        name: value + random.normal(0, 0.2, value.shape).astype(np.float32)
        for name, value in initial_parameters(config, seed=1).items()
    }


def _theirs(config, params, kind: str):
    model = config.model
    hf_config = transformers.BigBirdConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.num_layers,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size,
        hidden_act=model.hidden_act,
        max_position_embeddings=model.max_position_embeddings,
        type_vocab_size=SEGMENTS,
        attention_type="original_full",
        block_size=model.block_size,
        num_random_blocks=model.num_random_blocks,
        pad_token_id=0,
    )
    theirs = getattr(transformers, kind)(hf_config).eval()
    state = to_hugging_face(model, params)
    missing, unexpected = theirs.load_state_dict(
        {name: torch.from_numpy(value) for name, value in state.items()}, strict=False
    )
    # Only what is tied to others, and the pooler, which the masked-LM model has but does not use.
    assert all(m.startswith(("cls.predictions.decoder", "bert.pooler")) for m in missing), missing
    assert not unexpected
    return theirs


def _compare(config, kind: str) -> None:
    params = _trained_like(config)
    batch = tiny_batch(config, batch_size=2)
    theirs = _theirs(config, params, kind)
    ids = batch["input_ids"].numpy()
    with torch.no_grad():
        outputs = theirs(
            input_ids=torch.from_numpy(ids.astype(np.int64)),
            attention_mask=torch.from_numpy((ids != 0).astype(np.int64)),
            token_type_ids=torch.from_numpy(batch["segment_ids"].numpy().astype(np.int64)),
        )
    hidden = encode(params, config, batch["input_ids"], batch["segment_ids"])
    logits = masked_lm_logits(params, config, hidden).numpy()
    expected = outputs["prediction_logits" if config.make_data.nsp else "logits"].numpy()
    tokens = ids != 0
    np.testing.assert_allclose(logits[tokens], expected[tokens], atol=1e-4, rtol=1e-4)
    assert np.abs(expected).max() > 1  # there is something to agree on
    if config.make_data.nsp:
        relation = next_sentence_logits(params, hidden[:, 0]).numpy()
        np.testing.assert_allclose(relation, outputs["seq_relationship_logits"], atol=1e-4)


@pytest.mark.parametrize(("nsp", "act"), [(True, "gelu"), (False, "relu")])
def test_full_attention_agrees(nsp, act):
    sets = {"make_data.nsp": nsp, "model.hidden_act": act, "model.attention_type": "original_full"}
    kind = "BigBirdForPreTraining" if nsp else "BigBirdForMaskedLM"
    _compare(tiny_config(96, **sets), kind)


def test_a_foreign_name_is_an_error():
    with pytest.raises(KeyError, match="global_step"):
        hugging_face_name("global_step")
