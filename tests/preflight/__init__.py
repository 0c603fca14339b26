"""Programs that tests of prices read, as a compiler writes them: hlo/NAME.hlo."""

from pathlib import Path

HLO = {path.stem: path.read_text("utf-8") for path in Path(__file__).parent.glob("hlo/*.hlo")}
