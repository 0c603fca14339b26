"""Replace Google's services by fake ones, whose machines are processes on this computer.

`python -m testkit.emulated VALUES launch ...` runs a `bigbird-ja` command with the fake services in
a new process. VALUES is the result of `describe` as JSON.
"""

import contextlib
import json
import sys
from dataclasses import dataclass, field
from unittest import mock

from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession

from bigbird_ja import cli
from bigbird_ja.launch import backends
from bigbird_ja.launch.backends import MODULES, Cloud, Vm
from bigbird_ja.launch.rest import Rest
from testkit.fakes.compute import FakeCompute


@dataclass(frozen=True)
class EmulatedCloud(Cloud):
    """Cloud that connects to fake services, whose addresses are in `urls`."""

    urls: dict[str, str] = field(default_factory=dict)

    def connect(self, service, project):
        session = AuthorizedSession(AnonymousCredentials())
        return MODULES[service].Client(project, Rest(self.urls[service], session))


def describe(*fakes, **terms):
    """Return the arguments of `make_cloud` for running fake services.

    `terms` are fields of `watcher.Terms`, such as the time between polls.
    """
    urls = {"compute" if isinstance(one, FakeCompute) else "tpu": one.api for one in fakes}
    terms = {"metadata": fakes[-1].url, "poll": 1.0, **terms} if fakes else terms
    return {"urls": urls, "terms": terms}


def make_cloud(urls, terms):
    """Return a cloud that connects to fake services.

    Args:
        urls: addresses of the services by name.
        terms: fields of `watcher.Terms` for the rented machines.
    """
    vm = Vm("cpu", "none", False, [*urls.values()][-1], terms)
    return EmulatedCloud(tuple(urls), vm, urls)


@contextlib.contextmanager
def serving(*fakes, **terms):
    """Replace Google's services by fake services in this process. Without `fakes`, do nothing."""
    with contextlib.ExitStack() as stack:
        if fakes:
            cloud = make_cloud(**describe(*fakes, **terms))
            stack.enter_context(mock.patch.object(backends, "CLOUD", cloud))
        yield


if __name__ == "__main__":
    backends.CLOUD = make_cloud(**json.loads(sys.argv[1]))
    cli.main(sys.argv[2:])
