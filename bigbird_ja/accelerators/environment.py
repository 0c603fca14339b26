"""Environment of tests, of the package's figures and of rented machines."""

from collections.abc import Mapping

# The versions of launch/locks/machine.lock, for the Python of locks/cpython.json. Another pair of
# jax and libtpu compiles another program, with other cycles.
PACKAGES = {"tensorflow-cpu": "2.21.0", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
COMPILER = {name: PACKAGES[name] for name in ("jax", "libtpu")}


def describe(versions: Mapping[str, str]) -> str:
    """Format the versions of a step's compiler: "jax 0.10.2, libtpu 0.0.42.1"."""
    return ", ".join(f"{name} {versions.get(name, 'unknown')}" for name in COMPILER)


def compiler_warnings(versions: Mapping[str, str]) -> list[str]:
    """Warn about cycles of another compiler than rented machines have."""
    if COMPILER.items() <= versions.items():
        return []
    return [
        f"compiled with {describe(versions)}; machines that `launch` rents have"
        f" {describe(COMPILER)}: their cycles may differ"
    ]
