"""The exported code computes the same logits in transformers as the trainer."""

import copy
import dataclasses
import json
import pickle
import sys

import numpy as np
import pytest

from bigbird_ja.data import parsing
from bigbird_ja.export import model_card, parity
from bigbird_ja.export.folder import fill_huggingface
from bigbird_ja.model import pattern
from bigbird_ja.settings.values import replace_settings
from testkit import command_line
from tests.model.tiny import tiny_config

torch = pytest.importorskip("torch", reason="the model's code is PyTorch's")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")
pytestmark = pytest.mark.both

from bigbird_ja.export import modeling_bigbird_ja as modeling  # noqa: E402


def exported(trained, folder, **settings):
    """Change settings of the trained model, and export it. Return the folder and the model."""
    values = {f"model.{name}": value for name, value in settings.items()}
    changed = dataclasses.replace(trained, config=replace_settings(trained.config, values))
    folder.mkdir()
    fill_huggingface(str(folder), changed, model_card.Options("x"))
    return str(folder), changed


def config_of(**model):
    sets = {"num_random_blocks": 2, "pattern_seed": 3, **model}
    return tiny_config(**{f"model.{name}": value for name, value in sets.items()})


@pytest.mark.parametrize("random_pattern", ["rolled", "independent"])
@pytest.mark.parametrize("length", [40, 240])
def test_attention_equals_the_dense_reference(length, random_pattern):
    config = config_of(random_pattern=random_pattern)
    generator = torch.Generator().manual_seed(length)
    query, key, value = (
        torch.randn(2, 2, length, 4, generator=generator, requires_grad=True) for _ in range(3)
    )
    numbers = torch.ones(2, length, dtype=torch.long)
    numbers[0, length // 2 :] = 2  # The first sequence contains two documents.
    numbers[1, -length // 5 :] = 0  # The last block of the second sequence is padding.
    plan = modeling.plan_of(config, length, query.device)
    for layer in (0, 1):
        result = modeling.attend(query, key, value, numbers, plan, layer, rows=8)
        seen = torch.from_numpy(pattern.make_dense_mask(config, layer, length))[None]
        same = (numbers[:, :, None] == numbers[:, None, :]) & (numbers[:, None, :] > 0)
        scores = query @ key.transpose(-1, -2) / 2.0
        scores = scores.masked_fill(~(seen & same[:, None]), -1e30)
        there = (numbers > 0)[:, None, :, None]
        expected = (scores.softmax(-1) @ value) * there
        torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)
        weights = torch.randn(result.shape, generator=generator)
        ours = torch.autograd.grad((result * weights).sum(), (query, key, value))
        theirs = torch.autograd.grad((expected * weights).sum(), (query, key, value))
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.isfinite(mine).all()
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_logits_with_separate_documents_equal_the_trainers(trained, small_run, manifest, tmp_path):
    settings = {"num_random_blocks": 5, "attend_across_documents": False}
    folder, changed = exported(trained, tmp_path / "hf", **settings)
    batch = parity.load_masked_records(manifest, small_run.data_dir)
    special = changed.tokenizer.special
    batch["input_ids"][:, 100] = special.sep  # This separates two documents.
    ids = torch.from_numpy(batch["input_ids"].astype(np.int64))
    numbers = modeling.document_numbers(ids, special.sep, special.pad).numpy()
    expected = parsing.number_documents(manifest, batch["input_ids"]).numpy()
    np.testing.assert_array_equal(numbers, expected)
    ours = parity.score_trained(changed, batch, manifest)
    theirs = parity.score_exported(folder, changed, batch)
    np.testing.assert_allclose(theirs, ours, atol=parity.TOLERANCE)


def test_any_length_pickling_and_checkpointing_keep_results(trained, tmp_path):
    folder, _ = exported(trained, tmp_path / "hf")
    model = modeling.BigBirdJaForSequenceClassification.from_pretrained(folder, num_labels=3)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(11, 1000, (2, 201), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 150:] = 0
    with torch.no_grad():
        whole = model.eval()(input_ids=ids, attention_mask=mask).logits
        # More padding does not change the result.
        longer, longer_mask = (torch.nn.functional.pad(each, (0, 7)) for each in (ids, mask))
        torch.testing.assert_close(whole, model(longer, attention_mask=longer_mask).logits)
        # The model must be picklable for distributed training and for `torch.save(model)`.
        again = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        torch.testing.assert_close(whole, again(input_ids=ids, attention_mask=mask).logits)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    gradients = []
    for is_checkpointed in (False, True):
        model.train().zero_grad()
        if is_checkpointed:
            model.gradient_checkpointing_enable()
        model(ids, attention_mask=mask, labels=torch.tensor([0, 2])).loss.backward()
        query = model.bert.encoder.layer[0].attention.self.query.weight
        gradients.append(query.grad.clone())
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="this model takes 256"):
        model(torch.ones(1, 300, dtype=torch.long))


_LOAD = """
import sys, torch, transformers
folder = sys.argv[1]
ids = torch.arange(11, 251)[None]

def scores(name, trusted):
    model = getattr(transformers, name).from_pretrained(folder, trust_remote_code=trusted)
    assert type(model).__name__.startswith("BigBirdJa") == trusted, type(model)
    with torch.no_grad():
        return model, model.eval()(ids)[0]

model, exact = scores("AutoModelForMaskedLM", True)
_, stock = scores("AutoModelForMaskedLM", False)
assert exact.shape == stock.shape and not torch.allclose(exact, stock, atol=1e-5)
scores("AutoModelForQuestionAnswering", True)
model.save_pretrained(sys.argv[2])
assert "bigbird_ja" not in sys.modules
"""


def test_a_folder_loads_with_its_own_code_and_without(trained, tmp_path):
    folder, _ = exported(trained, tmp_path / "hf")
    saved = tmp_path / "saved"
    environ = {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": ""}
    done = command_line.run(sys.executable, "-c", _LOAD, folder, saved, cwd=tmp_path, env=environ)
    assert done.status == 0, done.stderr[-3000:]
    assert (saved / "modeling_bigbird_ja.py").exists() and (saved / "pattern.py").exists()
    before, after = (json.loads((p / "config.json").read_text()) for p in (tmp_path / "hf", saved))
    assert after["attention_type"] == before["attention_type"] == "block_sparse"
    assert after["bigbird_ja"] == before["bigbird_ja"]
