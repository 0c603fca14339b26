"""Optional packages, and how to install them.

A package is optional if some machines provide their own version of it, or if few users need it.
"""

import importlib.util

from bigbird_ja.errors import BadInput

# For each module that may be missing, the command that installs it.
INSTALL = {
    "tensorflow": "pip install 'bigbird-ja[cpu]', or [tensorflow] with Colab's jax",
    "tensorflow_estimator": "pip install 'bigbird-ja[estimator]' (TensorFlow 2.15)",
    "jax": "pip install 'bigbird-ja[cpu]', [tpu] or [gpu]",
    "libtpu": "pip install 'bigbird-ja[preflight]', or [tpu] on a TPU",
    "safetensors": "pip install 'bigbird-ja[huggingface]'",
    "huggingface_hub": "pip install 'bigbird-ja[huggingface]'",
    "torch": "pip install torch",
    "transformers": "pip install 'bigbird-ja[huggingface]'",
    "pyarrow": "pip install 'bigbird-ja[arrow]'",
    "fugashi": "pip install 'bigbird-ja[words]'",
    "ray": "pip install 'bigbird-ja[ray]'",
    "wandb": "pip install wandb",
}


def require(*modules: str) -> None:
    """Check that packages are installed.

    Args:
        modules: names in `INSTALL`.

    Raises:
        BadInput: A package is missing. The message contains the command that installs it.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise BadInput(f"{name} is not installed here: {INSTALL[name]}")
