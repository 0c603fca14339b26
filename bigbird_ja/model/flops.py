"""Number of FLOPs of a training step, and number of query-key pairs in attention."""

from bigbird_ja.errors import BadInput
from bigbird_ja.model import pattern
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import count_train_predictions


def count_model_flops(config: Config, data: Data, batch_per_core: int, share: float = 1.0) -> float:
    """Return the FLOPs of one core's step, as three times the FLOPs of the forward pass.

    The forward pass, with hidden size h, MLP size i and vocabulary size v, takes

    - 2 x 4 h^2 per token and layer for the projections;
    - 2 x 2 h i per token and layer for the MLP (2 x 3 h i for a gated MLP). In the last layer, only
      the tokens that the masked-LM or next-sentence head reads are counted;
    - 4 h per layer and visible pair of query and key, for scores and context;
    - 2 x (h^2 + h v) per prediction for the masked-LM head;
    - 2 x (h^2 + 2 h) per sequence for next-sentence prediction.

    In full attention, only the fraction `share` of the pairs is counted. It is the fraction of
    pairs within one document. In sparse and local attention, all pairs of the pattern are counted.
    Additions, softmax, norms and the optimizer are not counted.
    """
    model = config.model
    hidden, length = model.hidden_size, data.seq_length
    predictions = count_train_predictions(config, data)
    is_gated = model.architecture == "modernbert"
    projections = model.num_layers * length * 2 * 4 * hidden**2
    visible = [count_visible_pairs(config, layer, length) for layer in range(model.num_layers)]
    pairs = sum(pairs * share if pairs == length**2 else pairs for pairs in visible)
    tokens = (model.num_layers - 1) * length + predictions + (1 if data.nsp else 0)
    mlps = tokens * 2 * (3 if is_gated else 2) * hidden * model.intermediate_size
    head = predictions * 2 * (hidden**2 + hidden * (model.vocab_size or 0))
    pooler = 2 * (hidden**2 + 2 * hidden) if data.nsp else 0
    forward = projections + 4 * hidden * pairs + mlps + head + pooler
    return 3.0 * batch_per_core * forward


def check_length(config: Config, seq_length: int) -> None:
    """Check that a sequence length suits the attention pattern.

    Raises:
        BadInput: The length does not suit. The message contains the nearest suitable lengths.
    """
    try:
        pattern.is_full(config, seq_length)
    except ValueError as error:
        raise BadInput(str(error)) from error


def count_visible_pairs(config: Config, layer: int, length: int) -> int:
    """Return the number of query-key pairs that one head computes for a sequence without padding.

    Raises:
        BadInput: The sequence length does not suit the attention pattern.
    """
    model = config.model
    if model.architecture == "modernbert" and not pattern.is_global(model, layer):
        reach = min(model.local_attention // 2, length - 1)
        return length * (2 * reach + 1) - reach * (reach + 1)
    check_length(config, length)
    if pattern.is_full(config, length):
        return length * length
    blocks = pattern.block_mask(config, 0, length)
    return (
        round(float(blocks.sum()) / len(blocks)) * pattern.get_sparse_model(config).block_size ** 2
    )
