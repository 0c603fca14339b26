"""FLOPs that the model needs.

They follow Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B): only what the mathematics
needs, never what a layout or a recomputation adds.
"""

from __future__ import annotations

from bigbird_ja.model import pattern
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.values import train_predictions


def model_flops(config: Config, batch_per_core: int) -> float:
    """FLOPs that one core's step needs: forward once, backward twice.

    Per token and layer 2 x (4 h^2 + 2 h i) for the projections and the MLP, that of the last layer
    for the tokens that are asked for alone; 4 h per visible pair of query and key (scores and
    context); per prediction 2 x (h^2 + h v) for the masked-LM head; with NSP 2 x (h^2 + 2 h) per
    sequence. Sparse attention counts the pairs that its pattern lets see each other, and nothing
    else. Additions, softmax, norms and the optimiser count nothing.
    """
    model, data = config.model, config.make_data
    hidden, length = model.hidden_size, data.seq_length
    predictions = train_predictions(config)
    attention = length * 2 * 4 * hidden**2 + 4 * hidden * visible_pairs(config)
    tokens = (model.num_layers - 1) * length + predictions + (1 if data.nsp else 0)
    mlps = tokens * 2 * 2 * hidden * model.intermediate_size
    head = predictions * 2 * (hidden**2 + hidden * (model.vocab_size or 0))
    pooler = 2 * (hidden**2 + 2 * hidden) if data.nsp else 0
    forward = model.num_layers * attention + mlps + head + pooler
    return 3.0 * batch_per_core * forward


def visible_pairs(config: Config) -> int:
    """Pairs of query and key that one head of one sequence lets see each other, padding aside.

    Raises:
        BadInput: a sequence length that the attention pattern cannot be laid over.
    """
    length = config.make_data.seq_length
    try:
        if pattern.is_full(config, length):
            return length * length
        blocks = pattern.block_mask(config, 0, length)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return round(float(blocks.sum()) / len(blocks)) * config.model.block_size**2
