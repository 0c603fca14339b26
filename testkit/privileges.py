"""Takes from root what lets it read and write whatever it likes."""

import ctypes
import struct

_OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH of linux/capability.h
_CAPBSET_DROP = 24  # of linux/prctl.h
_VERSION_3 = 0x20080522


def obey_permissions():
    """From now on, modes of files bind this process and its children, root's too.

    It stays the same user: another one could not read an interpreter in root's home. Whoever is
    not root has nothing to lose; where a container forbids it, nothing changes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _OVERRIDES:  # or a child of root would have them again
        libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION_3, 0), 8)
    data = ctypes.create_string_buffer(24)
    libc.capget(header, data)
    words = list(struct.unpack("6I", data.raw))
    lost = sum(1 << capability for capability in _OVERRIDES)
    words[:3] = [word & ~lost for word in words[:3]]  # effective, permitted, inheritable
    libc.capset(header, ctypes.create_string_buffer(struct.pack("6I", *words), 24))
