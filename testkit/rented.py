"""Run `launch`'s startup script in an empty folder that takes the place of a rented machine."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from bigbird_ja.launch.backends import Vm
from testkit import ROOT

LOCKS = ROOT / "bigbird_ja/launch/locks"
PATH = "/usr/bin:/bin"
# Environment variables that this computer may need to connect to a package index.
_NETWORK = re.compile(r"(?i)(pip|uv|ssl|(https?|all|no)_proxy)($|_)")
_NOT_PACKED = {"site-packages", "dist-packages", "test", "tests", "__pycache__", "ensurepip"}


def python(version=""):
    """Find a Python with pip, like the Python in the image of a rented machine.

    Args:
        version: version such as "3.10", or "" for any.

    Returns:
        The path of the interpreter, or None if no such Python exists.
    """
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    names = [shutil.which("python3", path=PATH), f"{sys.base_prefix}/bin/python3"]
    if version:
        names = [
            shutil.which(f"python{version}"),
            *Path(pyenv).glob(f"versions/{version}.*/bin/python"),
        ]
    for name in filter(None, names):
        done = subprocess.run([name, "-m", "pip", "--version"], capture_output=True)
        if done.returncode == 0:
            return str(name)
    return None


def install(folder, python, *packages):
    """Install packages for the interpreter `python` into a folder, and return the folder."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    words = [uv, "pip", "install", "--quiet", "--python", python, "--target", folder, *packages]
    subprocess.run(words, check=True)
    return folder


def listing(folder):
    """Return the size and modification time of every file in a folder, by path.

    Compiled Python files and certificates are skipped, since they may change during a test.
    """
    files = [path for path in folder.rglob("*") if path.suffix not in (".pyc", ".pem")]
    return {path: path.stat()[6:9:2] for path in files if path.is_file()}


def archive_python(folder):
    """Pack this computer's Python as an archive that uv can install.

    Returns:
        The path of a file in the format of `locks/cpython.json` with the address of the archive.
    """
    version, base = f"python{sys.version_info[0]}.{sys.version_info[1]}", Path(sys.base_prefix)
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME") or "")

    def without(entry):
        parts = Path(entry.name).parts
        is_left_out = _NOT_PACKED & {*parts} or any(part.startswith("config-") for part in parts)
        return None if is_left_out else entry

    packed = folder / "cpython.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1) as archive:
        archive.add((base / "bin" / version).resolve(), f"python/bin/{version}")
        archive.add(sysconfig.get_path("stdlib"), f"python/lib/{version}", filter=without)
        if library.is_file():
            archive.add(library.resolve(), f"python/lib/{library.name}")
    (entry,) = json.loads((LOCKS / "cpython.json").read_text(encoding="utf-8")).values()
    entry |= {"url": packed.as_uri(), "patch": sys.version_info[2]}
    entry["sha256"] = hashlib.sha256(packed.read_bytes()).hexdigest()
    version, path = ".".join(map(str, sys.version_info[:3])), folder / "cpython.json"
    path.write_text(json.dumps({f"cpython-{version}-linux-x86_64-gnu": entry}), encoding="utf-8")
    return path


def uv_cache():
    """Return the folder of uv's cache, which all tests on this computer share."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("UV_CACHE_DIR") or f"{caches}/uv"


class Machine:
    """Simulated machine with an empty disk, an empty HOME and a minimal PATH.

    Args:
        root: empty folder for the machine's files.
        script: startup script.
        cpython: path of the file that `archive_python` returns. The installation uses it in place
            of `locks/cpython.json`.
        installed: machine whose installed package and environment this machine shares.
        packages: folder with the packages of the image's Python 3.10.
    """

    def __init__(self, root, script, cpython, installed=None, packages=None):
        self.root, self.disk = root, root / "disk"
        for name in ("disk", "home", "dev", "tmp"):
            (root / name).mkdir(parents=True)
        for name in ("package", "venv") if installed else ():
            (self.disk / name).symlink_to(installed.disk / name)
        # All environments of the image's Python find the packages in this folder.
        if packages:
            (root / "home/.local/lib/python3.10").mkdir(parents=True)
            (root / "home/.local/lib/python3.10/site-packages").symlink_to(packages)
        (root / "script").write_text(script, encoding="utf-8")
        self.environ = {
            "HOME": f"{root}/home",
            "PATH": PATH,
            "TMPDIR": f"{root}/tmp",
            "BIGBIRD_JA_VM_DIR": str(self.disk),
            "BIGBIRD_JA_VM_RUN_DIR": f"{root}/tmp",
            "BIGBIRD_JA_DEVICE_DIR": f"{root}/dev",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self._install = {
            **{name: text for name, text in os.environ.items() if _NETWORK.match(name)},
            "UV_CACHE_DIR": uv_cache(),
            "UV_PYTHON_DOWNLOADS_JSON_URL": str(cpython),
        }
        self._process = None

    def install(self):
        """Run only the part of the script that installs packages, with this computer's network."""
        words = ["bash", str(self.root / "script"), "install"]
        environ = {**self.environ, **self._install}
        return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=900)

    def boot(self, **environ):
        """Start the script. First remove the file in which an earlier boot reported its end."""
        (self.disk / "ended").unlink(missing_ok=True)
        self._process = subprocess.Popen(
            ["bash", str(self.root / "script")],
            env={**self.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def has_ended(self):
        """Return whether the trainer has ended and reported its exit."""
        return (self.disk / "ended").exists()

    def terminate(self):
        """Send SIGTERM, as a preemption does, and wait until the script ends."""
        self._process.terminate()
        return self._process.wait(timeout=120)

    def close(self):
        """Kill all remaining processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log(self):
        """Read the log of installation and training."""
        path = self.disk / "training.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""


def make_vm(metadata_url, storage_url):
    """Describe a simulated machine for `launch`: a CPU without a service manager."""
    terms = {"metadata": metadata_url, "storage": storage_url, "poll": 1.0}
    return Vm("cpu", "none", True, metadata_url, terms)
