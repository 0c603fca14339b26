"""Stored outputs of the TPU compiler: optimized programs, and messages about full memory."""

from pathlib import Path

HERE = Path(__file__).parent
HLO = {path.stem: path.read_text("utf-8") for path in HERE.glob("hlo/*.hlo")}
SHORTAGES = {path.stem: path.read_text("utf-8") for path in HERE.glob("shortages/*.txt")}
