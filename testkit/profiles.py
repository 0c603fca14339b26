"""Opens a profile as TensorBoard's profile plugin does, by the converter that the plugin calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def opened(model_dir: Path) -> bytes:
    """The content of the trace viewer, once the overview page opens too.

    Args:
        model_dir: of a run with one profile, which lies where the plugin looks for it.
    """
    paths = [str(path) for path in model_dir.glob("plugins/profile/*/*.xplane.pb")]
    assert len(paths) == 1, paths
    result = {}
    for tool in ("trace_viewer", "overview_page"):
        result[tool], is_converted = _converter().xspace_to_tools_data(paths, tool)
        assert is_converted and result[tool], tool
    return result["trace_viewer"]


def _converter() -> Any:
    try:
        from tensorflow.python.profiler.internal import _pywrap_profiler_plugin as converter
    except ImportError:  # TensorFlow 2.15
        from tensorflow.python.profiler.internal import _pywrap_profiler as converter
    return converter
