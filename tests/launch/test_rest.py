"""Requests to a service: retries, timeouts, and kinds of refusals."""

import socket
import threading
from dataclasses import replace
from unittest import mock

import pytest
from google.auth.exceptions import RefreshError

from bigbird_ja.launch import rest, tpu_api
from bigbird_ja.launch.advice import advise
from bigbird_ja.launch.rest import Kind, ServiceFault
from testkit.fakes.service import in_background
from tests.launch import support


def test_a_call_is_retried_while_the_service_is_unavailable(fake_tpu, tpus):
    fake_tpu.script += ["unavailable", "unavailable"]
    tpus.create(support.NODE, support.ZONE, 1, {}, 3600.0)
    assert fake_tpu.requests.count("POST nodes") == 3
    fake_tpu.script.append("reply_lost")
    with pytest.raises(ServiceFault) as caught:
        tpus.create(replace(support.NODE, name="run-2"), support.ZONE, 1, {}, 3600.0)
    assert caught.value.kind is Kind.EXISTS
    fake_tpu.unread = "unavailable"
    with pytest.raises(ServiceFault) as caught:
        tpus.find(support.ZONE, "run-1")
    assert caught.value.kind is Kind.UNAVAILABLE


@pytest.mark.parametrize("answers", [False, True], ids=["hangs", "drips"])
def test_a_server_that_hangs_does_not_hang_the_caller(answers):
    ended = threading.Event()

    def serve():
        connection, _ = server.accept()
        with connection:
            if answers:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        in_background(serve)
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        try:
            with pytest.raises(ServiceFault) as caught:
                tpu_api.Client("p", support.rest(base, 0.3, 0.01)).list()
        finally:
            ended.set()
    assert caught.value.kind is Kind.UNAVAILABLE


def test_refused_credentials_get_the_command_to_renew_them():
    session = mock.Mock()
    session.request.side_effect = RefreshError("x")
    with pytest.raises(ServiceFault) as caught:
        rest.Rest("http://127.0.0.1", session).call("GET", "x", rest.Answer)
    text = advise(caught.value, support.NODE, support.ZONE)
    assert "application-default login" in text


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, {"message": "Quota limit 'X' has been exceeded"}, Kind.QUOTA),
        (429, {"message": "There is no more capacity in the zone"}, Kind.STOCKOUT),
        (404, {"message": "operations/none was not found"}, Kind.NOT_FOUND),
        (409, {"message": "x"}, Kind.EXISTS),
        (409, {"message": "x", "status": "ABORTED"}, Kind.UNAVAILABLE),
        (412, {"message": "x"}, Kind.BAD_REQUEST),
        (401, {"message": "x"}, Kind.PERMISSION),
        (504, {}, Kind.UNAVAILABLE),
        (418, None, Kind.INTERNAL),
    ],
)
def test_the_kind_of_a_refusal(status, body, kind):
    fault = rest.parse_fault(status, {"error": body})
    assert fault.kind is kind and fault.message
