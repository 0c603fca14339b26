"""Package versions that are used for tests, for published figures and on rented machines."""

from collections.abc import Mapping

# The versions in launch/locks/machine.lock, for the Python of locks/cpython.json. With other
# versions of jax and libtpu, the compiled program and its cycles differ.
PACKAGES = {"tensorflow-cpu": "2.21.0", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
COMPILER = {name: PACKAGES[name] for name in ("jax", "libtpu")}


def describe(versions: Mapping[str, str]) -> str:
    """Format the versions of the packages that compile a step: "jax 0.10.2, libtpu 0.0.42.1"."""
    return ", ".join(f"{name} {versions.get(name, 'unknown')}" for name in COMPILER)


def list_compiler_warnings(versions: Mapping[str, str]) -> list[str]:
    """Return a warning if `versions` of jax or libtpu differ from those on rented machines."""
    if COMPILER.items() <= versions.items():
        return []
    return [
        f"compiled with {describe(versions)}, but machines of `launch` use {describe(COMPILER)}:"
        " their cycles may differ"
    ]
