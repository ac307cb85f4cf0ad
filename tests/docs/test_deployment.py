"""The deployment example of the serving guide: systemd accepts the unit and nginx runs the proxy."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tacit.cli.modules import make_serve_parser

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", GUIDE, re.S)
    return found


def test_unit_starts_a_valid_command() -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", block("ini"), re.M)
    program, verb, *words = command.split()
    assert program.endswith("/tacit") and verb == "serve"
    arguments, overrides = make_serve_parser().parse(words)
    assert arguments.modules == [Path("/srv/tacit/modules")] and overrides == {("serving", "worlds"): False}


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (program := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze on this machine")
    unit = tmp_path / "tacit.service"
    unit.write_text(block("ini").replace("/opt/tacit/bin/tacit", "/bin/true"))
    result = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True)
    assert "tacit.service" not in result.stderr, result.stderr


class Upstream(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "connection": self.headers.get("connection")}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def test_nginx_runs_the_proxy(tmp_path: Path) -> None:
    """With a self-signed certificate and a local upstream server."""
    nginx, openssl = os.environ.get("NGINX") or shutil.which("nginx"), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("no nginx or openssl on this machine; NGINX=PATH names one")
    key, certificate = tmp_path / "agents.key", tmp_path / "agents.pem"
    subject = ["-subj", "/CN=agents.example.org", "-addext", "subjectAltName=DNS:localhost"]
    options = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate), *subject]
    subprocess.run([openssl, *options], check=True, capture_output=True)
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    site = (
        block("nginx").replace("/etc/ssl/certs/agents.pem", str(certificate)).replace("/etc/ssl/private/agents.key", str(key))
    )
    site = site.replace("127.0.0.1:8765", f"127.0.0.1:{upstream.server_port}").replace(
        "listen 443 ssl", f"listen 127.0.0.1:{port} ssl"
    )
    places = " ".join(f"{kind}_temp_path {tmp_path / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config = tmp_path / "nginx.conf"
    config.write_text(f"daemon off; pid {tmp_path}/pid; events {{}} http {{ access_log off; {places}\n{site}}}")
    process = subprocess.Popen([nginx, "-p", str(tmp_path), "-e", str(tmp_path / "errors"), "-c", str(config)])
    context = ssl.create_default_context(cafile=str(certificate))
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                url = f"https://localhost:{port}"
                answer = json.load(urllib.request.urlopen(f"{url}/health", context=context, timeout=10))
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "errors").read_text()
                time.sleep(0.1)
        assert answer == {"path": "/health", "connection": None}
        for path, body, status in (("/metrics", None, 403), ("/sessions", b"x" * 300_000, 413)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{url}{path}", body, context=context, timeout=10)
            assert refused.value.code == status
    finally:
        process.terminate()
        process.wait(30)
        upstream.shutdown()
