"""Names and shapes of the model's parameters.

The names are from Google's BigBird checkpoints. ModernBERT's word embeddings and heads have the
same names as BigBird's. Kernels are [in, out]. The attention kernels of Google's checkpoints have
separate axes for the head and for its size, so they are reshaped when they are read.
`cls/seq_relationship/output_weights` is [2, hidden], as in Google's checkpoints.
"""

from dataclasses import dataclass

from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config

# Number of rows of the segment table: one for segment A, one for segment B.
SEGMENTS = 2
WORDS = "bert/embeddings/word_embeddings"
POSITIONS = "bert/embeddings/position_embeddings"
SEGMENT_TABLE = "bert/embeddings/token_type_embeddings"


@dataclass(frozen=True)
class ParameterSpec:
    """Shape and initialization of one parameter."""

    shape: tuple[int, ...]
    # Initialization: zeros, ones, normal (truncated at two deviations), or scaled (normal, divided
    # by sqrt(2 * layers)).
    kind: str

    @property
    def decay(self) -> bool:
        """Whether AdamW decays the parameter. Biases and layer norms are not decayed."""
        return len(self.shape) > 1


def make_parameter_specs(config: Config, data: Data) -> dict[str, ParameterSpec]:
    """Return the specs of all parameters, float32, in order of use.

    The pooler and `cls/seq_relationship` exist only with next-sentence prediction.
    """
    specs, hidden = _make_specs(config), config.model.hidden_size
    if data.nsp:
        specs |= _make_dense("bert/pooler/dense", hidden, hidden)
        specs["cls/seq_relationship/output_weights"] = ParameterSpec((2, hidden), "normal")
        specs["cls/seq_relationship/output_bias"] = ParameterSpec((2,), "zeros")
    return specs


def _make_specs(config: Config) -> dict[str, ParameterSpec]:
    """Return the specs of the encoder and the masked-LM head."""
    if config.model.architecture == "modernbert":
        return _make_modernbert_specs(config)
    return _make_bigbird_specs(config)


def list_layer_parameters(config: Config, layer: int) -> list[str]:
    """Return the names of one layer's parameters, in order of use."""
    scope = f"bert/encoder/layer_{layer}/"
    return [name for name in _make_specs(config) if name.startswith(scope)]


def _make_modernbert_specs(config: Config) -> dict[str, ParameterSpec]:
    """Return the specs of ModernBERT, with shapes and initialization of transformers' class.

    Only the output layer of the masked-LM head has a bias. Query, key and value share one kernel.
    The two halves of the gated MLP share another kernel.
    """
    model, hidden = config.model, config.model.hidden_size
    assert model.vocab_size is not None
    square = ParameterSpec((hidden, hidden), "scaled")
    norm = ParameterSpec((hidden,), "ones")
    specs = {
        WORDS: ParameterSpec((model.vocab_size, hidden), "normal"),
        "bert/embeddings/LayerNorm/gamma": norm,
    }
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}"
        if layer:  # The first layer's inputs, the embeddings, are already normalized.
            specs[f"{scope}/attention/LayerNorm/gamma"] = norm
        specs[f"{scope}/attention/Wqkv/kernel"] = ParameterSpec((hidden, 3 * hidden), "normal")
        specs[f"{scope}/attention/Wo/kernel"] = square
        specs[f"{scope}/mlp/LayerNorm/gamma"] = norm
        inner = model.intermediate_size
        specs[f"{scope}/mlp/Wi/kernel"] = ParameterSpec((hidden, 2 * inner), "normal")
        specs[f"{scope}/mlp/Wo/kernel"] = ParameterSpec((inner, hidden), "scaled")
    specs["bert/final/LayerNorm/gamma"] = norm
    specs["cls/predictions/transform/kernel"] = square
    specs["cls/predictions/transform/gamma"] = norm
    specs["cls/predictions/output_bias"] = ParameterSpec((model.vocab_size,), "zeros")
    return specs


def _make_bigbird_specs(config: Config) -> dict[str, ParameterSpec]:
    """Return the specs of BigBird."""
    model, hidden = config.model, config.model.hidden_size
    assert model.vocab_size is not None and model.max_position_embeddings is not None
    specs = {
        WORDS: ParameterSpec((model.vocab_size, hidden), "normal"),
        SEGMENT_TABLE: ParameterSpec((SEGMENTS, hidden), "normal"),
        POSITIONS: ParameterSpec((model.max_position_embeddings, hidden), "normal"),
        **_make_layer_norm("bert/encoder/LayerNorm", hidden),
    }
    for layer in range(model.num_layers):
        scope = f"bert/encoder/layer_{layer}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            specs |= _make_dense(f"{scope}/attention/{name}", hidden, hidden)
        specs |= _make_layer_norm(f"{scope}/attention/output/LayerNorm", hidden)
        specs |= _make_dense(f"{scope}/intermediate/dense", hidden, model.intermediate_size)
        specs |= _make_dense(f"{scope}/output/dense", model.intermediate_size, hidden)
        specs |= _make_layer_norm(f"{scope}/output/LayerNorm", hidden)
    specs |= _make_dense("cls/predictions/transform", hidden, hidden)
    specs |= _make_layer_norm("cls/predictions/transform", hidden)
    specs["cls/predictions/output_bias"] = ParameterSpec((model.vocab_size,), "zeros")
    return specs


def _make_dense(scope: str, rows: int, columns: int) -> dict[str, ParameterSpec]:
    kernel, bias = ParameterSpec((rows, columns), "normal"), ParameterSpec((columns,), "zeros")
    return {f"{scope}/kernel": kernel, f"{scope}/bias": bias}


def _make_layer_norm(scope: str, size: int) -> dict[str, ParameterSpec]:
    gamma, beta = ParameterSpec((size,), "ones"), ParameterSpec((size,), "zeros")
    return {f"{scope}/gamma": gamma, f"{scope}/beta": beta}
