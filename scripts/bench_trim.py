"""Measure the savings of `bigbird-ja trim`: parameters, a step on v5e, a step on this CPU.

    python -m scripts.bench_trim e5 e5-ja    # make bench-trim SOURCE=e5 TRIMMED=e5-ja

For v5e, `bigbird-ja preflight` counts the cycles of one core's step with 2 sequences of 4,096
tokens. On this CPU, `pretrain` trains on 4 random sequences of 512 tokens. The measurements of the
two encoders alternate, so that a change of the machine's speed affects both.
"""

import argparse
import itertools
import statistics
import subprocess
import tempfile
from pathlib import Path

from safetensors.numpy import load_file

from bigbird_ja.huggingface.config import read_config
from bigbird_ja.huggingface.run_settings import read_stated_settings
from bigbird_ja.model_dir.log import read_metrics
from bigbird_ja.process.console import table
from scripts.bench_restart import PROGRAM
from scripts.bench_step import preflight
from testkit import ROOT, synthetic

SETS = ("model.attention_type=original_full", "training.dtype=float32", "training.warmup_steps=0")
# A round has STEPS steps. The first WARM steps include tracing and are not counted.
ROUNDS, STEPS, WARM = 2, 8, 3


def cpu_steps(folder: str, sets: list[str], work: Path) -> list[float]:
    """Train with an encoder's settings, and return the seconds of each step after `WARM` steps."""
    vocab_size = read_config(folder).vocab_size
    synthetic.write(work / "data", (64,) * 4, seq_length=512, vocab_size=vocab_size)
    (work / "data" / "tokenizer.model").write_bytes(b"not read by training")
    line = [*PROGRAM, "pretrain", f"--data_dir={work / 'data'}", f"--model_dir={work / 'model'}"]
    line += [f"--num_train_steps={STEPS}", "--batch_size=4"]
    line += [f"--set={each}" for each in (*sets, *SETS, "training.log_every_steps=1")]
    subprocess.run(line, cwd=ROOT, check=True)
    seconds = [each["train_seconds"] or 0.0 for each in read_metrics(str(work / "model"))]
    return [after - before for before, after in itertools.pairwise(seconds)][WARM:]


def main() -> None:
    """Print both encoders' parameters, cycles on v5e and seconds on this CPU, with ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", help="folder of an encoder")
    parser.add_argument("trimmed", help="folder that `trim` made of it")
    folders = list(vars(parser.parse_args()).values())
    layers = [read_stated_settings(folder) for folder in folders]
    sets = [[f"{k}={v}" for layer in each for k, v in layer.values.items()] for each in layers]
    weights = [load_file(f"{folder}/model.safetensors").values() for folder in folders]
    millions = [sum(each.size for each in values) / 1e6 for values in weights]
    cycles = [preflight(each, 2, "--chip=v5e")["code_cycles"] / 1e6 for each in sets]
    seconds: list[list[float]] = [[], []]
    for _, i in itertools.product(range(ROUNDS), (0, 1)):
        with tempfile.TemporaryDirectory(prefix="bench-") as name:
            seconds[i] += cpu_steps(folders[i], sets[i], Path(name))
    medians = [statistics.median(each) for each in seconds]
    rows = (("M parameters", millions), ("M cycles on v5e", cycles), ("s on this CPU", medians))
    cells = [(what, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f} x") for what, (a, b) in rows]
    print(table(cells, ("", "source", "trimmed", "ratio")))


if __name__ == "__main__":
    main()
