"""
A server for the tests of launching: takes vLLM's command line, and its model is how it behaves.

With the variable DUMPS it writes into that folder how it was started; with LEAVE it ends then.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TRACEBACK = """\
(APIServer pid=7) INFO 11-21 13:05:07 [launcher.py:195] Route: /health, Methods: GET
(EngineCore pid=8) ERROR 11-21 13:05:08 [core.py:99] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-21 13:05:08 [core.py:99]   File "core.py", line 9, in load
(EngineCore pid=8) ERROR 11-21 13:05:08 [core.py:99] ValueError: the weights are rotten
(APIServer pid=7) Traceback (most recent call last):
(APIServer pid=7)   File "entry.py", line 3, in main
(APIServer pid=7) RuntimeError: Engine core initialization failed. See root cause above.
"""


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/die":
            os._exit(7)
        body = json.dumps({"data": [{"id": options.served_model_name}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def dump(folder: str) -> None:
    path = os.path.join(folder, options.served_model_name.replace("/", "_"))
    with open(path + ".part", "w") as part:
        json.dump({"words": sys.argv[1:], "environment": dict(os.environ)}, part)
    os.rename(path + ".part", path)
    print("the fake serves", file=sys.stderr, flush=True)


def serve() -> None:
    if "LEAVE" not in os.environ:
        ThreadingHTTPServer((options.host, options.port), Answers).serve_forever()


def crash() -> None:
    sys.stderr.write(TRACEBACK)
    sys.exit(3)


def mute() -> None:
    time.sleep(600)


def family() -> None:
    """Serve with a child process; both ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="serve")
    parser.add_argument("--served-model-name")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    options = parser.parse_known_args()[0]
    if "DUMPS" in os.environ:
        dump(os.environ["DUMPS"])
    {"crash": crash, "mute": mute, "family": family}.get(options.model, serve)()
