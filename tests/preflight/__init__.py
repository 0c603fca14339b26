"""What a compiler writes: programs of which tests read the prices, and messages of full memory."""

from pathlib import Path

HERE = Path(__file__).parent
HLO = {path.stem: path.read_text("utf-8") for path in HERE.glob("hlo/*.hlo")}
SHORTAGES = {path.stem: path.read_text("utf-8") for path in HERE.glob("shortages/*.txt")}
