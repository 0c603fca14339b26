"""A data set as people see it: a masked example, and a picture of lengths and density."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bigbird_ja.data import masking
from bigbird_ja.data.manifest import Manifest
from bigbird_ja.data.masking import MaskingRule
from bigbird_ja.storage import plotting
from bigbird_ja.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bigbird_ja.data.full_check import Found

_COLOURS = {
    "mask": "\x1b[1;31m",
    "random": "\x1b[1;33m",
    "kept": "\x1b[1;32m",
    "special": "\x1b[2;36m",
}
_PLAIN = "\x1b[0m"
LEGEND = "[MASK](was), random!(was), kept=; words are divided by |"


def legend(colour: bool) -> str:
    """What the signs mean."""
    if not colour:
        return LEGEND
    names = {"mask": "[MASK](was)", "random": "random!(was)", "kept": "kept="}
    parts = [f"{_COLOURS[kind]}{text}{_PLAIN}" for kind, text in names.items()]
    return ", ".join(parts) + "; words are divided by |"


def masked_text(
    tokens: npt.NDArray[Any],
    word_starts: npt.NDArray[np.bool_],
    masked: dict[str, npt.NDArray[Any]],
    tokenizer: Tokenizer,
    rule: MaskingRule,
    colour: bool,
    most: int = 200,
) -> str:
    """One record, masked.

    Args:
        tokens: int [S], before masking.
        word_starts: bool [S]; all False where words are not known.
        masked: one row of what `masking.mask` returns.
        tokenizer: for the pieces.
        rule: which ids are special.
        colour: whether to write ANSI colours.
        most: tokens shown.
    """
    weights = masked["masked_lm_weights"] > 0
    predicted = set(masked["masked_lm_positions"][weights].tolist())
    ordinary = masking.is_ordinary(tokens, rule)
    parts = []
    for at in range(min(most, len(tokens))):
        if tokens[at] == rule.pad_id:
            break
        if at and word_starts[at]:
            parts.append("|")
        piece = tokenizer.pieces[int(tokens[at])]
        if at in predicted:
            parts.append(_predicted(piece, int(tokens[at]), int(masked["input_ids"][at]),
                                    tokenizer, rule, colour))  # fmt: skip
        else:
            parts.append(_painted(piece, None if ordinary[at] else "special", colour))
    return "".join(parts)


def _predicted(
    piece: str, before: int, now: int, tokenizer: Tokenizer, rule: MaskingRule, colour: bool
) -> str:
    if now == rule.mask_id:
        return _painted(f"[MASK]({piece})", "mask", colour)
    if now == before:
        return _painted(f"{piece}=", "kept", colour)
    return _painted(f"{tokenizer.pieces[now]}!({piece})", "random", colour)


def _painted(text: str, kind: str | None, colour: bool) -> str:
    return f"{_COLOURS[kind]}{text}{_PLAIN}" if colour and kind else text


def draw(path: str, manifest: Manifest, found: Found) -> None:
    """Writes a PNG with three histograms."""
    figure = plotting.new_figure(13, 4)
    lengths, per_sequence, density = figure.subplots(1, 3)
    stated = manifest.statistics.get("document_tokens")
    counts = np.asarray(stated if stated else found.fragment_tokens)
    _bars(lengths, counts, [f"{2**i:,}" for i in range(len(counts))])
    what = "documents" if stated else "packed fragments"
    lengths.set(title=f"Length of {what}", xlabel="tokens, from", ylabel=what)
    _bars(per_sequence, found.fragments, [str(i) for i in range(len(found.fragments))])
    per_sequence.set(title="Documents per sequence", xlabel="documents", ylabel="sequences")
    density.hist(found.densities, bins=np.linspace(0, 1, 51).tolist())
    density.set(
        title=f"Density: {manifest.density:.2%} of positions are tokens",
        xlabel=f"share of {manifest.seq_length:,} positions", ylabel="sequences", yscale="log",
    )  # fmt: skip
    plotting.save(figure, path, dpi=120)


def _bars(axes, counts: np.ndarray, names: list[str]) -> None:  # type: ignore[no-untyped-def]
    there = np.flatnonzero(counts)
    first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 1)
    places = np.arange(last - first)
    axes.bar(places, counts[first:last])
    step = max(1, len(places) // 8)
    axes.set_xticks(places[::step], names[first:last:step], rotation=45)
