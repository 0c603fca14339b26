"""Outputs of a compiler: programs whose prices tests read, and messages of full memory."""

from pathlib import Path

HERE = Path(__file__).parent
HLO = {path.stem: path.read_text("utf-8") for path in HERE.glob("hlo/*.hlo")}
SHORTAGES = {path.stem: path.read_text("utf-8") for path in HERE.glob("shortages/*.txt")}
