"""The port that the service listens at."""

import socket

from stepspec.orchestrator.service.http.app import listen


def test_connections_send_small_pieces_at_once() -> None:
    """A step is a small piece, and may not wait until the client has acknowledged the one before."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
