"""Write an encoder as ONNX, and compare it with PyTorch by onnxruntime.

    pip install torch onnx onnxscript onnxruntime
    python docs/examples/to_onnx.py hf --output model.onnx

For a folder of one of transformers' own classes: a BERT, RoBERTa or XLM-R that was continued at its
own length, or a ModernBERT. A BigBird with code of its own (`auto_map`) is refused. The program
takes `input_ids` and `attention_mask`, int64 [batch, tokens], and returns `logits` of a masked-LM
model, else `last_hidden_state`; both dimensions are free. sentence-transformers reads the same
folder by `SentenceTransformer(folder, backend="onnx")` (`pip install optimum-onnx`).
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import transformers

TOLERANCE = 1e-4  # of the largest value: float32 in two programs


class Outputs(torch.nn.Module):
    """A model's first output, of ids and mask."""

    def __init__(self, model: torch.nn.Module) -> None:
        """Wrap a model."""
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, size]."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask)[0]


def load(folder: str) -> torch.nn.Module:
    """Load a folder's model by the class that its config names.

    Raises:
        SystemExit: it has code of its own, or is of no encoder's class.
    """
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if config.model_type == "big_bird" or getattr(config, "auto_map", None):
        raise SystemExit(f"to_onnx: {folder}: BigBird's attention depends on the length: no ONNX")
    masked = (config.architectures or [""])[0].endswith("ForMaskedLM")
    kind = transformers.AutoModelForMaskedLM if masked else transformers.AutoModel
    return kind.from_pretrained(folder, attn_implementation="sdpa").eval()


def inputs(vocab_size: int, batch: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random ids and a mask whose last row is half padding."""
    ids = torch.randint(5, vocab_size, (batch, tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[-1, tokens // 2 :] = 0
    return ids, mask


def main() -> None:
    """Export, compare, print the difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of an encoder")
    parser.add_argument("--output", type=Path, required=True, help="file, such as model.onnx")
    args = parser.parse_args()
    model = load(args.model)
    size = model.config.vocab_size
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    name = (
        "logits" if model.config.architectures[0].endswith("ForMaskedLM") else "last_hidden_state"
    )
    torch.onnx.export(
        Outputs(model),
        inputs(size, 2, 48),
        str(args.output),
        input_names=["input_ids", "attention_mask"],
        output_names=[name],
        dynamic_shapes={"input_ids": free, "attention_mask": free},
        dynamo=True,
    )
    session = onnxruntime.InferenceSession(str(args.output), providers=["CPUExecutionProvider"])
    longest = min(model.config.max_position_embeddings - 2, 128)
    for batch, tokens in ((1, 16), (3, longest)):  # others than those that it was traced with
        ids, mask = inputs(size, batch, tokens)
        with torch.inference_mode():
            theirs = model(input_ids=ids, attention_mask=mask)[0].numpy()
        feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        ours = session.run([name], feeds)[0]
        seen = mask.numpy() > 0
        gap = float(np.abs(ours - theirs)[seen].max() / np.abs(theirs[seen]).max())
        print(f"{batch} x {tokens} tokens: largest difference {gap:.1e} of the largest value")
        if gap > TOLERANCE:
            raise SystemExit("to_onnx: PyTorch and onnxruntime DO NOT AGREE")


if __name__ == "__main__":
    main()
