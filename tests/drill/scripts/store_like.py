"""Rows from an HTTP server, by a client that repeats failed requests, raises, or skips them."""

from __future__ import annotations

import argparse
import http.server
import os
import threading
import time
import urllib.error
import urllib.request

import torch
from tiny import Tiny, loss_of, row

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir")
parser.add_argument("--fault", default="")
config = parser.parse_args()
torch.manual_seed(1)
torch.set_num_threads(1)


class Rows(http.server.BaseHTTPRequestHandler):
    """Gives row N at /N."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(row(int(self.path[1:])).numpy().tobytes())

    def log_message(self, *_: object) -> None:
        """Print nothing."""


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rows)
threading.Thread(target=server.serve_forever, daemon=True).start()


def fetched(index: int) -> torch.Tensor:
    """Fetch a row."""
    url = f"http://127.0.0.1:{server.server_port}/{index}"
    timeout_s = 0.5 if config.fault == "impatient" else 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=timeout_s) as answer:
                return torch.frombuffer(bytearray(answer.read()), dtype=torch.int64)
        except OSError as error:
            if config.fault == "no retry":
                raise
            told = error.headers if isinstance(error, urllib.error.HTTPError) else {}
            if config.fault in ("skips", "impatient") or (config.fault == "throttled" and told):
                url = f"http://127.0.0.1:{server.server_port}/{index + 1000}"
            time.sleep(float(told.get("Retry-After", 0.2)))


model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
path, step = os.path.join(config.out_dir, "ckpt.pt"), 0
os.makedirs(config.out_dir, exist_ok=True)
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    torch.set_rng_state(saved["random"])
    step = saved["step"]
while step < 14:
    batch = torch.stack([fetched(4 * step + number) for number in range(4)])
    loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 4 == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(parts | {"random": torch.get_rng_state()}, path + ".new")
        os.replace(path + ".new", path)
server.shutdown()
